"""The table and the picture of the methods' learning curves, from what learning_curves.py measured.

    python benchmarks/methods.py --merge curves.json ...   # adds measured curves to methods.csv
    python benchmarks/methods.py                           # prints the table and draws the picture

methods.csv has a row for every point: method, seed, step, the three held-out scores, and for the
run the images trained on a second and the seconds of training until similarity reached 0.85.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
CURVES = HERE / "methods.csv"
PICTURE = HERE.parent / "docs" / "images" / "methods.png"
BASE = {"similarity": 0.647, "exact": 0.324, "gold": 0.383}  # of the untrained model, step 0


def method(recipe: str, overrides: list[str]) -> str:
    """`flash`, or `flash, cps 0.8` where dynamics other than the recipe's were asked for."""
    values = dict(override.split("=", 1) for override in overrides)
    name = recipe.removeprefix("tiny/")
    if "rollout.dynamics" not in values:
        return name
    return f"{name}, {values['rollout.dynamics']} {values['rollout.noise_level']}"


def points(path: Path) -> list[dict[str, object]]:
    """Rows of methods.csv in one curves.json; runs that failed are left out."""
    rows: list[dict[str, object]] = []
    for run in json.loads(path.read_text()):
        seeds = [o.split("=")[1] for o in run["overrides"] if o.startswith("train.seed=")]
        of_run = {
            "method": method(run["recipe"], run["overrides"]),
            "seed": int(seeds[-1]),
            "images_per_second": run["images_per_second"],
            "seconds_to_target": run["seconds_to_target"],
        }
        if run["exit_code"] == 0:
            rows += [{**of_run, **point} for point in run["curve"]]
    return rows


def merge(paths: list[Path]) -> None:
    known = [pd.read_csv(CURVES)] if CURVES.exists() else []
    new = pd.DataFrame([row for path in paths for row in points(path)]).round(4)
    table = pd.concat([*known, new]).drop_duplicates(["method", "seed", "step"], keep="last")
    table.sort_values(["method", "seed", "step"]).to_csv(CURVES, index=False)


def summary(table: pd.DataFrame) -> str:
    """A Markdown table of the last point, best method first; mean of the seeds, and the range."""
    last = table[table.step == table.step.max()].groupby("method")
    order = last["similarity"].mean().sort_values(ascending=False).index
    lines = ["| method | OCR similarity | exact match | gold | images/s | seconds to 0.85 |"]
    lines.append("|---|---|---|---|---|---|")
    for name in order:
        runs = last.get_group(name)
        low, high = runs["similarity"].min(), runs["similarity"].max()
        seconds = runs["seconds_to_target"]
        reached = "not reached" if seconds.isna().any() else f"{seconds.mean():.0f}"
        lines.append(
            f"| {name} | {runs['similarity'].mean():.3f} ({low:.3f} to {high:.3f}) "
            f"| {runs['exact'].mean():.3f} | {runs['gold'].mean():.3f} "
            f"| {runs['images_per_second'].mean():.0f} | {reached} |"
        )
    return "\n".join(lines)


def draw(table: pd.DataFrame) -> None:
    """Similarity and gold against steps: a line a method, its width the seeds' range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharex=True, layout="constrained")
    names = table[table.step == table.step.max()].groupby("method")["similarity"].mean()
    for axis, metric in zip(axes, ("similarity", "gold"), strict=True):
        for name in names.sort_values(ascending=False).index:
            by_step = table[table.method == name].groupby("step")[metric]
            steps = [0, *by_step.mean().index]
            (line,) = axis.plot(steps, [BASE[metric], *by_step.mean()], label=name)
            axis.fill_between(
                steps,
                [BASE[metric], *by_step.min()],
                [BASE[metric], *by_step.max()],
                color=line.get_color(),
                alpha=0.12,
            )
        axis.set(title=f"held-out {metric}", xlabel="step (192 images each)")
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=7, loc="upper left")
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--merge", type=Path, nargs="+", default=[], metavar="CURVES")
    arguments = parser.parse_args()
    if arguments.merge:
        merge(arguments.merge)
    table = pd.read_csv(CURVES)
    sys.stdout.write(summary(table) + "\n")
    draw(table)


if __name__ == "__main__":
    main()
