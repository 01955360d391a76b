"""A merged DeepGen as the file that fine-tuning starts from, proven in a real clean process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import Tensor

from atelier.cli.application import application
from atelier.config.sections.policy import PolicyConfig
from atelier.data.prompts import write_prompts
from atelier.errors import CheckpointError, ConfigError
from atelier.export.deepgen import sft
from atelier.export.deepgen.sft import Converted, Laid, laid_onto, write_sft
from atelier.export.manifest import write_manifest
from atelier.export.reference import Difference, Differences
from atelier.export.run import export_run
from atelier.policies.deepgen.source import open_source
from atelier.tracking.run_directory import RunDirectory
from tests.support import deepgen_exports
from tests.support.exports import PROMPTS, save_trained, trained
from tests.support.patience import PATIENCE
from tests.support.runs import environment

QUERY = "transformer.transformer_blocks.0.attn.to_q.weight"


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """That trained an adapter of the transformer, and was exported merged."""
    folder = tmp_path_factory.mktemp("sft")
    made, base = RunDirectory(folder / "run"), deepgen_exports.save_base(folder / "base")
    export = {"formats": ["merged"], "verify_prompts": 2}
    config = deepgen_exports.run_config(base, "lora", export=export)
    write_prompts(made.data / "heldout.parquet", PROMPTS)
    save_trained(made, trained(config))
    export_run(made, config, {})
    return made


@pytest.fixture
def state(run: RunDirectory) -> dict[str, Tensor]:
    return deepgen_exports.sft_state(run.root.parent / "base")


def merged(run: RunDirectory) -> dict[str, Tensor]:
    folder = run.export / "merged"
    transformer = load_file(folder / deepgen_exports.WEIGHTS)
    return {
        **{f"transformer.{name}": value for name, value in transformer.items()},
        **load_file(folder / deepgen_exports.MORE_WEIGHTS[0]),
    }


def test_a_run_is_laid_onto_the_checkpoint_it_was_trained_from(
    run: RunDirectory, state: dict[str, Tensor], tmp_path: Path
) -> None:
    average = {f"module.ema.{QUERY}": torch.zeros(1)}
    wrapped = {f"model.{name}": one for name, one in {**state, **average}.items()}
    torch.save(wrapped, tmp_path / "sft.pth")
    written = write_sft(run.root, tmp_path / "rl.pth", tmp_path / "sft.pth")
    found = torch.load(tmp_path / "rl.pth", weights_only=True)
    assert found.keys() == wrapped.keys() - {f"model.module.ema.{QUERY}"}, "by its names"
    found = {name.removeprefix("model."): one for name, one in found.items()}
    for name, value in merged(run).items():
        assert torch.equal(found[f"module.{name}"], value.bfloat16())
    moved = [name for name in state if not torch.equal(found[name], state[name])]
    assert f"module.{QUERY}" in moved
    lora = "module.lmm.lm_head.lora_A.default.weight"
    assert torch.equal(found[lora], state[lora]), "the language model's adapter is kept"
    assert found[lora].dtype == torch.float32
    assert (written.replaced, written.kept, written.vlm) == (len(merged(run)), 2, 0)
    assert written.laid is not None
    assert 0 < written.laid.moved < 0.5
    assert len(written.laid.left_out) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rl.pth", "sft.pth"]


def test_without_one_it_holds_the_language_model_in_full(run: RunDirectory, tmp_path: Path) -> None:
    """And a policy starts from it over stock models as it does from the merged export."""
    shown = CliRunner().invoke(
        application,
        ["export", "sft", str(run.root), str(tmp_path / "whole.pth"), "--device", "cpu"],
    )
    assert shown.exit_code == 0, shown.output
    assert "of the trainer's (mean 0.000/255)" in shown.output, "a last bit may round otherwise"
    found = torch.load(tmp_path / "whole.pth", weights_only=True)
    assert all(torch.equal(found[name], value) for name, value in merged(run).items())
    assert "lmm.model.layers.0.self_attn.q_proj.weight" in found
    base = str(run.root.parent / "base")
    ours = open_source(
        PolicyConfig(
            family="deepgen",
            path=str(tmp_path / "whole.pth"),
            bases={"vlm": f"{base}/vlm", "pipeline": base},
            connector={"heads": 1},
        )
    )
    theirs = open_source(PolicyConfig(family="deepgen", path=str(run.export / "merged")))
    for one, other in (
        (ours.transformer("float32"), theirs.transformer("float32")),
        (ours.vlm("float32"), theirs.vlm("float32")),
        (ours.bridge(), theirs.bridge()),
    ):
        held = other.state_dict()
        assert all(torch.equal(value, held[name]) for name, value in one.state_dict().items())


def another_model(state: dict[str, Tensor]) -> None:
    for name, value in state.items():
        if name.startswith("module.transformer.") and value.ndim > 1:
            value.copy_(torch.randn(value.shape))


def other_weights(state: dict[str, Tensor]) -> None:
    """All of them are named, up to a number."""
    names = [name for name in state if name.startswith("module.transformer.")][: sft.LISTED + 1]
    for name in names:
        del state[name]
    state["transformer.a"] = torch.zeros(1)


MISFITS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "no adapter": (
        lambda state: [state.pop(name) for name in [*state] if ".lmm." in name],
        "holds nothing of the language model",
    ),
    "a weight less": (lambda state: state.pop(f"module.{QUERY}"), "missing there"),
    "a weight more": (
        lambda state: state.update({"transformer.odd": torch.zeros(1)}),
        r"1 weights of .* differ in name or shape: transformer.odd \(only there\)",
    ),
    "another shape": (
        lambda state: state.update({f"module.{QUERY}": torch.zeros(2, 2)}),
        r"to_q.weight \(there \[2, 2\], in the export",
    ),
    "other weights": (
        other_weights,
        r"transformer\.a .only there., .* .missing there. and 2 more",
    ),
    "another model": (another_model, "is not the one that was trained from"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_checkpoint_of_another_model_is_told(
    run: RunDirectory, state: dict[str, Tensor], misfit: str
) -> None:
    change, message = MISFITS[misfit]
    change(state)
    with pytest.raises(CheckpointError, match=message):
        laid_onto("sft.pth", merged(run), state)


def test_how_far_a_transformer_may_be_is_a_choice(
    run: RunDirectory, state: dict[str, Tensor]
) -> None:
    another_model(state)
    assert laid_onto("sft.pth", merged(run), state, most_moved=10).moved > sft.MOST_MOVED


def test_what_is_altered_or_paints_otherwise_is_not_written(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    copy = Path(shutil.copytree(run.export / "merged", tmp_path / "merged"))
    file = copy / deepgen_exports.WEIGHTS
    held = load_file(file)
    held[QUERY.removeprefix("transformer.")] += 1
    save_file(held, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="altered"):
        write_sft(copy, tmp_path / "out.pth")
    write_manifest(copy)
    with pytest.raises(CheckpointError, match="images differ from the trainer's"):
        write_sft(copy, tmp_path / "out.pth")
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    # A file that loses a weight on its way is noticed before anything paints.
    monkeypatch.setattr(
        sft.torch, "save", lambda state, path: _saved({**state, QUERY: state[QUERY] + 1}, path)
    )
    with pytest.raises(CheckpointError, match=r"1 of .* weights are others"):
        write_sft(run.root, tmp_path / "out.pth")


_save = torch.save


def _saved(state: dict[str, Tensor], path: Path) -> None:
    _save(state, path)


def test_targets_and_sources_that_are_none(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "there.pth").touch()
    for target in ("there.pth", "out.safetensors"):
        with pytest.raises(ConfigError, match=r"name a new file that ends in \.pth"):
            write_sft(run.root, tmp_path / target)
    with pytest.raises(ConfigError, match="neither a merged export of DeepGen, nor a run"):
        write_sft(tmp_path, tmp_path / "out.pth")


def test_it_is_told_how_far_things_are() -> None:
    images = Differences(Difference(2 / 255, 0.1 / 255))
    laid = Laid(dict.fromkeys("abc", torch.zeros(1)), ("ema.a", "ema.b"), 0.0123)
    text = Converted(Path("x.pth"), 1, 0, laid, images).describe()
    assert "2 kept of the checkpoint, of whose transformer this moved 1.23%" in text
    assert "and 2 of its moving average left out" in text
    assert "images within 2/255 of the trainer's (mean 0.100/255)" in text


def exporting(run: RunDirectory, out: Path) -> subprocess.Popen[str]:
    """An export that has written its file, and proves it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier", "export", "sft", str(run.root), str(out)],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + PATIENCE
    while not painting_of(process):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)
    assert [path.name for path in out.parent.iterdir()] == [f".{out.name}.{process.pid}"]
    return process


def painting_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The clean process of an export, and what guards it."""
    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("clean_process" in word for word in one.cmdline()):
                found.append(one)
    return found


@pytest.mark.parametrize(("by", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_one_that_is_stopped_leaves_neither_file_nor_process(
    run: RunDirectory, tmp_path: Path, by: signal.Signals, code: int
) -> None:
    process = exporting(run, tmp_path / "rl.pth")
    painting = painting_of(process)
    process.send_signal(by)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    assert said.strip().splitlines()[-1] == "interrupted"
    assert list(tmp_path.iterdir()) == []
    _, living = psutil.wait_procs(painting, PATIENCE)
    assert living == []


def test_what_a_killed_one_left_is_removed_by_the_next(run: RunDirectory, tmp_path: Path) -> None:
    target = tmp_path / "rl.pth"
    process = exporting(run, target)
    painting = painting_of(process)
    process.kill()
    process.communicate(timeout=PATIENCE)
    _, living = psutil.wait_procs(painting, PATIENCE)
    assert living == [], "its clean process ends with it"
    another = tmp_path / f".rl.pth.{os.getppid()}"
    another.touch()  # of a process that lives
    write_sft(run.root, target)
    assert set(tmp_path.iterdir()) == {target, another}
