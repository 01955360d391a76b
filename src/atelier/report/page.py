"""Build the page of a run from its directory: `render(run)` gives one self-contained HTML text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml
from markupsafe import escape

from atelier.config.resolve import load_stage_config
from atelier.config.suite_rules import judge_is_reward
from atelier.evaluation.results import HEADLINE
from atelier.report.charts import Series, line_chart
from atelier.report.comparison import headline, read_comparison, units_of
from atelier.report.judges import judge_stores, judges_asked
from atelier.report.metric_names import direction_of, is_part, order_of
from atelier.report.pictures import PICTURE_NOTES, first_prompts, most_worsened
from atelier.report.run_data import (
    Evaluation,
    finite_numbers,
    heldout_edits,
    metric_records,
    periodic_evaluations,
    sample_folders,
    stage_records,
    stage_times,
)
from atelier.report.samples import read_samples
from atelier.report.templates import fill
from atelier.report.warnings import judge_is_reward_words, warnings
from atelier.rewards.service_file import read_services
from atelier.tracking.run_directory import RunDirectory, read_json_object, read_run_file

PROMPTS_SHOWN = 16
WORSENED_SHOWN = 4
PROMPTS_BY_STEP = 6
CURVES_SHOWN = 5
LIBRARIES = ("torch", "diffusers", "transformers", "rapidocr", "prefect", "mlflow")


def render(run: RunDirectory) -> str:
    """The page. A run that is not finished gives the sections it has files for."""
    config = load_stage_config(run.config("report"))
    steps = metric_records(run)
    periodic = periodic_evaluations(run)
    comparison = read_comparison(run)
    sides = _before_and_after(run, steps[-1]["step"] if steps else 0)
    both = sides if len(sides) == 2 else []
    by_step = [one for one in periodic if one.suite == config.evaluation.suite]
    pictured = [one for one in by_step if one.has_images]
    # Other prompts than the whole suite's: one curve is never made of both.
    curve = by_step if len(by_step) > 1 else sides
    history = [one.summary["metrics"] for one in curve]
    headline_metric = curve[-1].summary.get("headline", HEADLINE) if curve else HEADLINE
    description = read_run_file(run)
    edits = heldout_edits(run, config)
    stages = stage_records(run)
    return fill(
        "page.html.j2",
        run=description,
        planned=description.get("warnings") or [],
        headline=headline(comparison),
        comparison=comparison,
        dangers=[judge_is_reward_words(history[-1:])] if judge_is_reward(config) else [],
        warnings=warnings(steps, history, comparison, headline_metric),
        units=units_of(sides[-1].summary if sides else {}),
        picture_note=PICTURE_NOTES[config.evaluation.suite],
        charts=_charts(steps, curve),
        curve_note=_curve_note(curve, sides),
        always_zero=always_zero(_training_series(steps)),
        pairs=first_prompts(both, PROMPTS_SHOWN, edits),
        worsened=most_worsened(both, WORSENED_SHOWN, edits),
        by_step=first_prompts(pictured, PROMPTS_BY_STEP, edits) if len(pictured) > 1 else [],
        step_titles=[f"step {one.step}" for one in pictured],
        samples=[read_samples(folder) for folder in _first_and_last(sample_folders(run))],
        judges=judges_asked(run, config),
        judge_stores=list(judge_stores(config)),
        stages=stages,
        times=stage_times({name: one for name, one in stages.items() if name != "report"}),
        phases=_phases(steps),
        config=escape(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)),
        scored_by=_scored_by(run),
        versions=_versions(),
        export=_export(run),
    )


def _first_and_last(folders: Sequence[Path]) -> list[Path]:
    return [*folders[:1], *folders[1:][-1:]]


def _before_and_after(run: RunDirectory, last_step: int) -> list[Evaluation]:
    found = [Evaluation("", 0, run.baseline), Evaluation("", last_step, run.evaluate)]
    return [one for one in found if (one.folder / "summary.json").exists()]


def _curve_note(curve: Sequence[Evaluation], sides: Sequence[Evaluation]) -> str:
    """That the curve is of fewer prompts than the table, and so of other means; else empty."""
    if not (curve and sides) or curve[-1].prompts >= sides[-1].prompts:
        return ""
    return (
        f"The held-out curve is of the first {curve[-1].prompts} of {sides[-1].prompts} prompts "
        "(evaluation.periodic_prompts), so its values are not those of before and after."
    )


def _charts(steps: Sequence[dict[str, Any]], heldout: Sequence[Evaluation]) -> list[dict[str, str]]:
    """The curves a person looks at first; a chart without data, or of zeros, is left out."""
    training = _training_series(steps)
    zeros = always_zero(training)
    charts = [
        ("Held-out, 95 % intervals", _heldout_series(heldout)),
        ("Training reward", [_step_series("mean reward", "reward/mean", steps)]),
        *_charts_of_rewards(steps),
        *(chart for chart in training if chart[0] not in zeros),
    ]
    drawn = [{"title": title, "svg": line_chart(series)} for title, series in charts]
    return [chart for chart in drawn if chart["svg"]]


def _training_series(steps: Sequence[dict[str, Any]]) -> list[tuple[str, list[Series]]]:
    """How training went, besides the rewards."""
    return [
        ("Ratio: mean |ratio - 1|", [_step_series("|ratio - 1|", "ratio/mean_abs_dev", steps)]),
        ("Clipped share, by sign of the advantage", [
            _step_series("positive", "clip/positive", steps),
            _step_series("negative", "clip/negative", steps),
        ]),
        ("Trained against sampling policy: relative difference of velocities", [
            _step_series("difference", "nft/velocity_gap", steps),
        ]),
        ("KL to the reference", [_step_series("KL", "kl", steps)]),
        ("Gradient norm before clipping", [_step_series("gradient norm", "grad_norm", steps)]),
        ("Groups with equal rewards", [_step_series("share", "advantage/zero_std_share", steps)]),
    ]  # fmt: skip


def always_zero(charts: Sequence[tuple[str, Sequence[Series]]]) -> list[str]:
    """Titles of charts all of whose points are 0: said in words, which take less room. So are the
    ratios of a policy that is trained on what it has just sampled."""
    points = {title: [y for one in series for _, y in one.points] for title, series in charts}
    return [title for title, values in points.items() if values and not any(values)]


def _charts_of_rewards(steps: Sequence[dict[str, Any]]) -> list[tuple[str, list[Series]]]:
    """Where several rewards make the total: each by itself, and what it has to say in it."""
    found = (name.split("/") for step in steps for name in step if name.startswith("reward/"))
    rewards = sorted({words[1] for words in found if len(words) == 3 and words[2] == "mean"})
    if len(rewards) < 2:
        return []
    return [
        (title, [_step_series(name, f"reward/{name}/{metric}", steps) for name in rewards])
        for title, metric in (
            ("Each reward, unweighted", "mean"),
            ("Share of the advantage that each reward explains", "advantage_share"),
        )
    ]


def _step_series(label: str, name: str, steps: Sequence[dict[str, Any]]) -> Series:
    points = [(s["step"], s[name]) for s in steps if name in finite_numbers(s)]
    return Series(label, points, smooth=True)


def _heldout_series(evaluations: Sequence[Evaluation]) -> list[Series]:
    """The suite's metrics that have a better and a worse, the first ones; not those of parts."""
    names = {name for one in evaluations for name in one.means}
    shown = [name for name in sorted(names, key=order_of) if direction_of(name)]
    whole = [name for name in shown if not is_part(name)]
    return [_evaluation_series(name, evaluations) for name in whole[:CURVES_SHOWN]]


def _evaluation_series(metric: str, evaluations: Sequence[Evaluation]) -> Series:
    found = [(one.step, one.summary["metrics"].get(metric)) for one in evaluations]
    present = [(step, value) for step, value in found if value]
    bounds = [(value.get("low"), value.get("high")) for _, value in present]
    bands = [(low, high) for low, high in bounds if low is not None and high is not None]
    return Series(
        metric.replace("_", " "),
        [(step, value["mean"]) for step, value in present],
        bands if len(bands) == len(present) else None,
    )


def _phases(steps: Sequence[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """(phase, seconds, share) of the trainer's time, the largest first."""
    # A phase's name has no slash: time/reward/... says how long rewards took beside the loop.
    keys = {key for step in steps for key in step if key.startswith("time/")}
    names = {key for key in keys if key.count("/") == 1} - {"time/step"}
    sums = {name: sum(float(step.get(name, 0)) for step in steps) for name in names}
    total = sum(sums.values()) or 1.0
    ordered = sorted(sums.items(), key=lambda item: -item[1])
    return [(name.removeprefix("time/"), seconds, seconds / total) for name, seconds in ordered]


def _scored_by(run: RunDirectory) -> dict[str, str]:
    """What made the scores: each reward's version, and the judges' servers with their weights."""
    path = run.train / "rewards.json"
    rewards = read_json_object(path) if path.exists() else {}
    found = {
        f"reward {name}, weight {one['weight']:g}": one["version"] for name, one in rewards.items()
    }
    for name, replicas in read_services(run.train).items():
        if name.startswith("judges."):
            one = replicas[0]
            weights = f", weights {one['weights']}" if one.get("weights") else ""
            found[f"judge {name.removeprefix('judges.')}"] = (
                f"{one.get('model', '')} by {one.get('version', 'unknown')}{weights}"
            )
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _export(run: RunDirectory) -> dict[str, Any]:
    path = run.export / "summary.json"
    return read_json_object(path) if path.exists() else {}
