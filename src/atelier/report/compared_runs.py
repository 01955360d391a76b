"""Finished runs, read for a comparison: who is whom, what differs, and whether they may be paired.

Runs are grouped by configuration without the seed. Only runs whose final evaluations show the same
prompts under the same settings can be compared: everything else is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from atelier.config.digest import SHAPED_BY, digest
from atelier.config.schema import RunConfig
from atelier.config.stage_files import recorded_config
from atelier.errors import ConfigError, DataError
from atelier.evaluation.files import read_evaluation
from atelier.evaluation.reading import require_shown
from atelier.evaluation.results import Evaluation
from atelier.report.run_data import flat, stage_records
from atelier.tracking.run_directory import RunDirectory, read_run_file

# Never a difference between configurations: what groups are made of, and when files are written.
_NO_SETTING = frozenset(
    {"train.seed", "train.checkpoint_every", "train.keep_checkpoints", "train.evaluate_every"}
)
# What decides which image a prompt gets and how it is scored.
_EVALUATION = ("suite", "images_per_prompt", "num_inference_steps", "guidance_scale", "seed")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class ComparedRun:
    """A run with its final evaluation and the one before training."""

    directory: RunDirectory
    description: dict[str, Any]
    config: RunConfig
    data: dict[str, str]  # digest of each prompt table
    before: Evaluation
    after: Evaluation

    @property
    def id(self) -> str:
        return str(self.description["id"])

    @property
    def name(self) -> str:
        return str(self.description.get("run_name") or self.id)

    @property
    def given_name(self) -> str | None:
        """What a person called it (`--name`)."""
        return self.config.tracking.run_name

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def code(self) -> str:
        """The commit, and whether files were changed since."""
        git = self.description.get("git") or {}
        sha = git.get("sha")
        return f"{sha[:10]}{' with changes' if git.get('dirty') else ''}" if sha else "unknown"

    @property
    def origins(self) -> dict[str, str]:
        """What the run was made from, besides its settings."""
        return {
            **{f"data {name}": value[:12] for name, value in self.data.items()},
            "code": self.code,
        }

    def settings(self) -> dict[str, Any]:
        """Every dotted key that shapes the evaluated weights, but the seed."""
        shape = self.config.shape()
        sections = {name: shape[name] for name in SHAPED_BY["train"] if name != "evaluation"}
        sections["export"] = {"weights": self.config.export.weights}
        return {key: value for key, value in flat(sections) if key not in _NO_SETTING}


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, by seed; `differing` holds its values of what differs.

    `recipe` is its name where no other group has the same; `name` is what all its runs were called
    by who started them, likewise.
    """

    letter: str
    runs: Sequence[ComparedRun]
    differing: dict[str, Any]
    recipe: str | None = None
    name: str | None = None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @property
    def label(self) -> str:
        """Short enough for a sentence: the name, what differs where that is one thing, else the
        recipe or the letter."""
        if self.name:
            return self.name
        return self.summary if len(self.differing) == 1 else self.recipe or self.letter

    @property
    def summary(self) -> str:
        """What differs, in a few words."""
        found = [f"{key} {shown(value)}" for key, value in self.differing.items()]
        if self.recipe and len(found) > 3:
            return f"{self.recipe}, {len(found)} settings (all below)"
        more = [f"and {len(found) - 3} more (all below)"] if len(found) > 3 else []
        return ", ".join([*found[:3], *more]) or "nothing"


def shown(value: Any) -> str:
    """A setting as a person would type it."""
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else str(value)


def read_compared(run: RunDirectory) -> ComparedRun:
    """Read a finished run.

    Raises:
        DataError: it has no final evaluation of its present configuration, or a file is damaged.
        ConfigError: its configuration is not one this version knows.
    """
    description = read_run_file(run)
    records = stage_records(run)
    record = records.get("evaluate", {})
    present = (description.get("digests") or {}).get("evaluate")
    if record.get("status") != "done" or record.get("identity", {}).get("digest") != present:
        raise DataError(
            f"run {description.get('id')}: not finished: it has no final evaluation of its present "
            f"configuration; `atelier run --resume {run.root.name}` goes on with it"
        )
    return ComparedRun(
        directory=run,
        description=description,
        config=recorded_config(run.config("evaluate")),
        data=_data(description, records),
        before=_shown(run.baseline),
        after=_shown(run.evaluate),
    )


def _shown(folder: Path) -> Evaluation:
    found = read_evaluation(folder)
    require_shown(folder, found.rows, found.summary)
    return found


def _data(description: dict[str, Any], records: dict[str, dict[str, Any]]) -> dict[str, str]:
    """md5 of the prompt tables where DVC versions them, else their sha256."""
    known = (description.get("data") or {}).get("md5")
    outputs = known or records.get("prepare", {}).get("outputs", {})
    return {name: str(value) for name, value in outputs.items() if name.endswith(".parquet")}


def require_comparable(runs: Sequence[ComparedRun]) -> None:
    """Refuse runs that were not evaluated alike.

    Raises:
        DataError: suites, settings, readers or held-out prompts that differ, and whose.
    """
    first = runs[0]
    for other in runs[1:]:
        reasons = list(_reasons_against(first, other))
        if reasons:
            raise DataError(
                f"runs {first.id} and {other.id} cannot be compared: {'; '.join(reasons)}. "
                "Evaluate both alike (`atelier run --resume RUN --set evaluation.KEY=VALUE`), or "
                "compare them with other runs"
            )


def _reasons_against(first: ComparedRun, other: ComparedRun) -> Iterator[str]:
    for key in _EVALUATION:
        one, two = (getattr(run.config.evaluation, key) for run in (first, other))
        if one != two:
            yield f"evaluation.{key} is {one} and {two}"
    one, two = (run.after.summary.get("reader") for run in (first, other))
    if one != two:
        yield f"images were read by {one} and by {two}"
    settings = [dict(flat(run.config.shape()["evaluation"])) for run in (first, other)]
    for key in sorted(set(settings[0]) | set(settings[1])):
        if key.startswith(f"{first.config.evaluation.suite}.") and not key.endswith(".weight"):
            one, two = (values.get(key) for values in settings)
            if one != two:
                yield f"evaluation.{key} is {shown(one)} and {shown(two)}"
    one, two = (_prompts(run.after) for run in (first, other))
    if one != two:
        changed = sum(one[key] != two[key] for key in one.keys() & two.keys())
        yield (
            f"their held-out prompts are not the same ({len(one)} and {len(two)}, "
            f"{len(one.keys() & two.keys()) - changed} in common)"
        )


def _prompts(evaluation: Evaluation) -> dict[tuple[Any, Any], tuple[Any, Any]]:
    return {
        (row.get("dataset_id"), row["prompt_id"]): (row["prompt"], row.get("target"))
        for row in evaluation.rows
    }


def group_runs(runs: Sequence[ComparedRun]) -> list[Group]:
    """Runs by configuration without the seed, in the order of their settings.

    Where the configurations are one, the code is what differs: runs are grouped by commit.

    Raises:
        ConfigError: two runs of a group have the same seed: one of them says nothing new.
    """
    settings = {run.id: run.settings() for run in runs}
    found: dict[str, list[ComparedRun]] = {}
    for run in runs:
        found.setdefault(digest(settings[run.id]), []).append(run)
    if len(found) == 1 and len({run.code for run in runs}) > 1:
        settings = {run.id: {"code": run.code} for run in runs}
        found = {}
        for run in runs:
            found.setdefault(run.code, []).append(run)
    keys = _differing([settings[members[0].id] for members in found.values()])
    members = [sorted(one, key=lambda run: run.seed) for one in found.values()]
    members.sort(key=lambda one: [_sortable(settings[one[0].id].get(key)) for key in keys])
    groups = []
    for number, one in enumerate(members):
        _require_different_seeds(one)
        values = {key: settings[one[0].id].get(key) for key in keys}
        groups.append(Group(_letter(number), one, values))
    recipes = _own([{run.description.get("recipe") for run in one.runs} for one in groups])
    names = _own([{run.given_name for run in one.runs} for one in groups])
    return [
        replace(one, recipe=recipe, name=name)
        for one, recipe, name in zip(groups, recipes, names, strict=True)
    ]


def _own(values: Sequence[set[str | None]]) -> list[str | None]:
    """What all runs of a group have, and no other group has only that."""
    return [next(iter(one)) if len(one) == 1 and values.count(one) == 1 else None for one in values]


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if any(one.get(key) != settings[0].get(key) for one in settings)]


def _sortable(value: Any) -> tuple[int, float, str]:
    number = isinstance(value, int | float)
    return (0, float(value), "") if number else (1, 0.0, str(value))


def _require_different_seeds(runs: Sequence[ComparedRun]) -> None:
    for one, other in pairwise(runs):
        if one.seed == other.seed:
            raise ConfigError(
                f"runs {one.id} and {other.id} have the same configuration and seed {one.seed}: "
                "they are one run twice; leave one out, or train with another train.seed"
            )


def _letter(number: int) -> str:
    return _LETTERS[number] if number < len(_LETTERS) else f"G{number + 1}"
