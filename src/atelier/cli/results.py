"""Verbs about finished runs."""

from __future__ import annotations

from pathlib import Path

import click

from atelier.cli.options import PATH
from atelier.config.paths import from_root, make_folder


@click.command()
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@click.option("--metric", metavar="NAME", help="What the headline is about, such as gold.")
@click.option(
    "--out",
    type=PATH,
    metavar="FOLDER",
    help="Where the page goes. Default: .atelier/compare/<id> of the repository.",
)
def compare(names: tuple[str, ...], metric: str | None, out: Path | None) -> None:
    """Compare finished runs: which is better on what, by how much.

    RUN is a run's directory, its id below runs/ or how that begins, or its name. Runs that differ
    in the seed only are one group; groups are compared on the same prompts and noise.
    """
    from atelier.report.runs_comparison import compare_runs
    from atelier.report.runs_page import write_page
    from atelier.stages.find_run import find_run

    comparison = compare_runs([find_run(name) for name in names], metric)
    if out is not None:
        make_folder(out, "--out")
    folder = out or from_root(".atelier/compare") / comparison.short_id
    page = write_page(comparison, folder)
    click.echo(f"{comparison.as_text()}\n\nPage:  {page}")


@click.group()
def export() -> None:
    """Other layouts of an exported model."""


@export.command()
@click.argument("name", metavar="PATH")
@click.argument("out", type=PATH)
@click.option(
    "--like",
    type=PATH,
    metavar="FOLDER",
    help="The original model, such as deepseek-ai/Janus-Pro-7B: its configuration, tokenizer and "
    "unused weights make OUT a whole model. Without it, weights alone are written.",
)
def original(name: str, out: Path, like: Path | None) -> None:
    """Write a merged Janus in the layout of its original code.

    PATH is a run (its directory or id), a merged export, or another Janus that transformers loads.
    OUT is a new directory of safetensors, read back and compared before it is put in place.
    """
    from atelier.export.janus.original import write_original
    from atelier.stages.find_run import find_path

    if not name:
        raise click.UsageError("PATH is empty; name a run or an exported directory")
    click.echo(write_original(find_path(name), out, like).describe())


@export.command()
@click.argument("name", metavar="PATH")
@click.argument("out", type=PATH)
@click.option(
    "--onto",
    type=PATH,
    metavar="FILE",
    help="The checkpoint of fine-tuning that was trained from: all else in it is kept, each weight "
    "in its dtype. Without it the language model is written in full.",
)
@click.option(
    "--most-moved",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="How far the transformer may be from that checkpoint's, as a share of its length.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
def sft(name: str, out: Path, onto: Path | None, most_moved: float, device: str) -> None:
    """Write a merged DeepGen as one file of weights (.pth), to fine-tune from.

    PATH is a run (its directory or id) or a merged export, of average or last weights as
    export.weights had it, or a checkpoint that DeepGen-RL saved. OUT is a new file, read back, and
    of a run painted with in a clean process, before it is put in place.
    """
    from atelier.export.deepgen.sft import write_sft
    from atelier.export.verify import resolve_device
    from atelier.stages.find_run import find_path

    if not name:
        raise click.UsageError("PATH is empty; name a run or an exported directory")
    found = write_sft(find_path(name), out, onto, resolve_device(device), most_moved)
    click.echo(found.describe())


VERBS = (compare, export)
