"""The page of a comparison: one self-contained HTML file, and its figures as JSON beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atelier.report.charts import Series, line_chart
from atelier.report.metric_names import direction_of, label_of
from atelier.report.page import always_zero
from atelier.report.pictures import PICTURE_NOTES, first_prompts
from atelier.report.run_data import (
    Evaluation,
    heldout_edits,
    metric_records,
    periodic_evaluations,
)
from atelier.report.templates import fill
from atelier.tracking.run_directory import write_json, write_text_atomically

if TYPE_CHECKING:
    from atelier.report.compared_runs import ComparedRun
    from atelier.report.runs_comparison import RunsComparison

COLUMNS_SHOWN = 12  # of runs; with more, one a configuration
IMAGES_SHOWN = 96
PROMPTS_SHOWN = 12
TRAINING_CURVES = {
    "Training reward": "reward/mean",
    "KL to the reference": "kl",
    "Ratio: mean |ratio - 1|": "ratio/mean_abs_dev",
    "Trained against sampling policy: relative difference of velocities": "nft/velocity_gap",
    "Gradient norm before clipping": "grad_norm",
}


def write_page(comparison: RunsComparison, folder: Path) -> Path:
    """Write index.html and comparison.json into `folder`; returns the path of the page."""
    page = folder / "index.html"
    write_json(folder / "comparison.json", figures(comparison))
    write_text_atomically(page, render(comparison))
    return page


def render(comparison: RunsComparison) -> str:
    """The page as HTML text."""
    columns = _columns(comparison)
    count = min(PROMPTS_SHOWN, max(2, IMAGES_SHOWN // len(columns)))
    first = comparison.runs[0]  # runs that are compared have the same held-out prompts
    edits = heldout_edits(first.directory, first.config)
    return fill(
        "runs_page.html.j2",
        comparison=comparison,
        charts=_charts(comparison),
        picture_note=PICTURE_NOTES[comparison.runs[0].config.evaluation.suite],
        titles=[title for title, _ in columns],
        rows=first_prompts([one for _, one in columns], count, edits),
    )


def figures(comparison: RunsComparison) -> dict[str, Any]:
    """Every figure of the page, for programs."""
    return {
        "headline": comparison.headline,
        "warnings": comparison.warnings,
        "groups": [
            {
                "letter": group.letter,
                "label": group.label,
                "differing": group.differing,
                "runs": [{"id": run.id, "seed": run.seed, **run.origins} for run in group.runs],
            }
            for group in comparison.groups
        ],
        "metrics": [
            {**asdict(one), "winner": one.winner, "sentence": sentence}
            for one, sentence in zip(comparison.metrics, comparison.sentences, strict=True)
        ],
    }


def _columns(comparison: RunsComparison) -> list[tuple[str, Evaluation]]:
    """Before training, once where all runs started alike; then every run, or one a group."""
    several = len(comparison.runs) > COLUMNS_SHOWN
    shown = [
        (group, run) for group in comparison.groups for run in group.runs[: 1 if several else None]
    ]
    columns = [
        (f"{group.letter}, seed {run.seed}", Evaluation("", 0, run.directory.evaluate))
        for group, run in shown[:COLUMNS_SHOWN]
    ]
    if comparison.start_alike:
        columns.insert(0, ("before", Evaluation("", 0, comparison.runs[0].directory.baseline)))
    return columns


def _charts(comparison: RunsComparison) -> list[dict[str, str]]:
    """Curves of all runs; the runs of a group have its colour."""
    curves: dict[str, list[Series]] = {}
    for color, group in enumerate(comparison.groups):
        for run in group.runs:
            for title, points in _curves(run, [one.metric for one in comparison.metrics]).items():
                series = Series(group.label, points, smooth=title in TRAINING_CURVES, color=color)
                curves.setdefault(title, []).append(series)
    zeros = always_zero([one for one in curves.items() if one[0] in TRAINING_CURVES])
    shown = {title: series for title, series in curves.items() if title not in zeros}
    drawn = [{"title": title, "svg": line_chart(series)} for title, series in shown.items()]
    return [chart for chart in drawn if chart["svg"]]


def _curves(run: ComparedRun, metrics: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    suite = run.config.evaluation.suite
    periodic = [one for one in periodic_evaluations(run.directory) if one.suite == suite]
    steps = metric_records(run.directory)
    means = [(one.step, one.means) for one in periodic]
    curves: dict[str, list[tuple[float, float]]] = {
        f"Held-out {label_of(name)}": [(n, mean[name]) for n, mean in means if name in mean]
        for name in metrics
        if direction_of(name)
    }
    for title, name in TRAINING_CURVES.items():
        points = [(s["step"], s[name]) for s in steps if isinstance(s.get(name), int | float)]
        curves[title] = points
    return curves
