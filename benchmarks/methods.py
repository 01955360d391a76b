"""Tables and pictures of the methods' learning curves, from what learning_curves.py measured.

    python benchmarks/methods.py BOARD --merge curves.json ...   # adds measured curves to its file
    python benchmarks/methods.py BOARD --base baseline.json      # adds the untrained model to it
    python benchmarks/methods.py BOARD --base NAME=baseline.json # ... as it samples for NAME
    python benchmarks/methods.py BOARD                           # prints the table, draws it
    python benchmarks/methods.py BOARD --step 20                 # the table as it was at a step

A board is what one model is measured by: `sd3` words, `pairs` and `edits` the embedded Janus. Its
file methods-BOARD.csv has a row for every point: method, seed, step, the scores (with the ends of
their intervals), and for the run the images trained on a second and the seconds of training until
the first score reached what learning_curves.py was told.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
UNTRAINED = "untrained"


@dataclass(frozen=True)
class Board:
    """What is shown of the curves of one kind of run.

    Attributes:
        scores: columns of the table by the name of their metric; the first one orders it.
        drawn: what the picture shows.
        images: trained on in a step.
        target: of the first score; the table says after how many seconds it was reached.
    """

    name: str
    scores: dict[str, str]
    drawn: tuple[str, str]
    images: int
    target: float | None = None

    @property
    def curves(self) -> Path:
        return HERE / f"methods-{self.name}.csv"

    @property
    def picture(self) -> Path:
        return HERE.parent / "docs" / "images" / f"methods-{self.name}.png"

    @property
    def first(self) -> str:
        return next(iter(self.scores))


_SD3 = {"similarity": "OCR similarity", "exact": "exact match", "gold": "gold"}
_PAIRS = {
    "gold_arithmetic": "gold, arithmetic",
    "gold_geometric": "gold, geometric",
    "judge_arithmetic": "judge, arithmetic",
    "judge_geometric": "judge, geometric",
}
_EDITS = {
    "gold_edited": "edited",
    "gold_following": "following",
    "gold_preserving": "preserving",
}
BOARDS = {
    board.name: board
    for board in (
        Board("sd3", _SD3, ("similarity", "gold"), 192, target=0.85),
        Board("pairs", _PAIRS, ("gold_arithmetic", "judge_arithmetic"), 512),
        Board("edits", _EDITS, ("gold_following", "gold_preserving"), 512),
    )
}


def method(recipe: str, overrides: Sequence[str]) -> str:
    """`flash`, or with what makes it another method than the recipe's: `flash, cps 0.8`."""
    values = dict(override.split("=", 1) for override in overrides)
    name = recipe.split("/")[-1]
    if "rollout.dynamics" in values:
        name += f", {values['rollout.dynamics']} {values['rollout.noise_level']}"
    if "rollout.tokens.log_prob" in values:
        name += f", {values['rollout.tokens.log_prob']}"
    if values.get("algorithm.ground_truth.enabled") == "false":
        name += " without ground truth"
    return name


def points(path: Path) -> list[dict[str, object]]:
    """Rows of a board's file in one curves.json; runs that failed are left out."""
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


def merge(board: Board, rows: Sequence[dict[str, object]]) -> None:
    """Add measured points; a point that was measured before is replaced."""
    known = [pd.read_csv(board.curves)] if board.curves.exists() else []
    ends = [f"{score}/{end}" for score in board.scores for end in ("low", "high")]
    run = ["method", "seed", "images_per_second", "seconds_to_target", "step"]
    new = pd.DataFrame(rows).reindex(columns=[*run, *board.scores, *ends]).round(4)
    table = pd.concat([*known, new.dropna(axis="columns", how="all")])
    table = table.drop_duplicates(["method", "seed", "step"], keep="last")
    table.sort_values(["method", "seed", "step"]).to_csv(board.curves, index=False)


def summary(table: pd.DataFrame, board: Board) -> str:
    """A Markdown table of the last points, best method first: mean of the seeds and their range."""
    last = table.groupby(["method", "seed"]).tail(1).groupby("method")
    head = ["method", "steps", *board.scores.values(), "images/s"]
    head += [f"seconds to {board.target}"] if board.target else []
    lines = [_line(head), "|---" * len(head) + "|"]
    for name in last[board.first].mean().sort_values(ascending=False).index:
        runs = last.get_group(name)
        cells = [name, _steps(runs), *(_cell(runs, score) for score in board.scores)]
        untrained = name.startswith(UNTRAINED)
        cells.append("" if untrained else f"{runs['images_per_second'].mean():.0f}")
        if board.target:
            cells.append("" if untrained else _reached(runs["seconds_to_target"]))
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _steps(runs: pd.DataFrame) -> str:
    fewest, most = runs["step"].min(), runs["step"].max()
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def _reached(seconds: pd.Series) -> str:
    return "not reached" if seconds.isna().any() else f"{seconds.mean():.0f}"


def _cell(runs: pd.DataFrame, score: str) -> str:
    """`0.921 (0.902 to 0.934)`; of one seed, and where known, the interval of its evaluation."""
    low, high = runs[score].min(), runs[score].max()
    if len(runs) == 1 and f"{score}/low" in runs:
        low, high = runs[f"{score}/low"].iloc[0], runs[f"{score}/high"].iloc[0]
    shown = f"{runs[score].mean():.3f}"
    return shown if low == high or low != low else f"{shown} ({low:.3f} to {high:.3f})"


def before(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The untrained model: as it samples for the method, where that is a row of its own."""
    own = [name for name in set(table.method) if _samples_for(name, method)]
    return table[table.method == (own[0] if own else UNTRAINED)]


def _samples_for(untrained: str, method: str) -> bool:
    head, _, sampling = untrained.partition(", ")
    return head == UNTRAINED and sampling != "" and method.startswith(sampling)


def draw(table: pd.DataFrame, board: Board) -> None:
    """Two scores against steps: a line a method, its width the seeds' range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    trained = table[~table.method.str.startswith(UNTRAINED)]
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharex=True, layout="constrained")
    last = trained.groupby(["method", "seed"]).tail(1)
    names = last.groupby("method")[board.first].mean().sort_values(ascending=False).index
    for axis, metric in zip(axes, board.drawn, strict=True):
        for name in names:
            start = list(before(table, name)[metric])
            by_step = trained[trained.method == name].groupby("step")[metric]
            steps = [*([0] * len(start)), *by_step.mean().index]
            (line,) = axis.plot(steps, [*start, *by_step.mean()], label=name)
            low, high = [*start, *by_step.min()], [*start, *by_step.max()]
            axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.12)
        axis.set(
            title=f"held-out {board.scores[metric]}", xlabel=f"step ({board.images} images each)"
        )
        axis.grid(alpha=0.3)
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(lines, labels, fontsize=7, loc="outside lower center", ncols=4)
    figure.savefig(board.picture, dpi=110)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("board", choices=sorted(BOARDS))
    parser.add_argument("--merge", type=Path, nargs="+", default=[], metavar="CURVES")
    parser.add_argument("--base", nargs="+", default=[], metavar="BASELINE")
    parser.add_argument("--step", type=int, help="leave out what came after it")
    arguments = parser.parse_args(words)
    board = BOARDS[arguments.board]
    rows = [row for path in arguments.merge for row in points(path)]
    for base in arguments.base:
        sampling, _, path = base.rpartition("=")
        name = f"{UNTRAINED}, {sampling}" if sampling else UNTRAINED
        rows.append({"method": name, "seed": 0, "step": 0, **json.loads(Path(path).read_text())})
    if rows:
        merge(board, rows)
    table = pd.read_csv(board.curves)
    told = table if arguments.step is None else table[table.step <= arguments.step]
    sys.stdout.write(summary(told, board) + "\n")
    draw(table, board)


if __name__ == "__main__":
    main()
