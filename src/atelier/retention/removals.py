"""What would go, by choice: whole runs, checkpoints that nothing needs, what is left over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from atelier.report.run_data import periodic_evaluations, sample_folders
from atelier.retention.survey import SurveyedRun, freed_bytes
from atelier.tracking.run_directory import RunDirectory, all_checkpoints

Kind = Literal[
    "run", "checkpoints", "moved aside", "earlier images", "earlier samples", "half written"
]

_MOVED_ASIDE = re.compile(r"[a-z]+\.old-\d+")
_CHECKPOINT = re.compile(r"train/checkpoints/(step-\d+)/MANIFEST\.json")
# Written aside by a process that was killed: `.name.<pid>`, sometimes with `.tmp`.
_HALF_WRITTEN = re.compile(r"\..+\.\d+(\.tmp)?")


@dataclass(frozen=True)
class Choice:
    """What a person wants gone. A run goes when it is outside the newest `keep` and older than
    `older_than`; with one of the two given, that one alone decides."""

    keep: int | None = None
    older_than: timedelta | None = None
    checkpoints: bool = False
    leftovers: bool = False

    @property
    def is_empty(self) -> bool:
        return self == Choice()


@dataclass(frozen=True)
class Removal:
    """Paths of one run that would go together."""

    run: SurveyedRun
    kind: Kind
    paths: Sequence[Path]
    freed: int

    @property
    def what(self) -> str:
        return "the whole run" if self.kind == "run" else f"{self.kind}: {len(self.paths)}"


def removals(runs: Sequence[SurveyedRun], choice: Choice) -> list[Removal]:
    """What would go of `runs` (the newest first). Nothing of a busy one does."""
    found = []
    for number, one in enumerate(runs):
        if one.busy is not None:
            continue
        if _goes_whole(one, number, choice):
            found.append(_removal(one, "run", [one.run.root]))
            continue
        if choice.checkpoints and one.finished:
            found.append(_removal(one, "checkpoints", _needless_checkpoints(one)))
        if choice.leftovers:
            found += [
                _removal(one, kind, list(paths(one.run))) for kind, paths in _LEFTOVERS.items()
            ]
    return [one for one in found if one.paths]


def _goes_whole(one: SurveyedRun, number: int, choice: Choice) -> bool:
    if choice.keep is None and choice.older_than is None:
        return False
    beyond = choice.keep is None or number >= choice.keep
    age = datetime.now(UTC) - one.last_used
    return beyond and (choice.older_than is None or age > choice.older_than)


def _removal(one: SurveyedRun, kind: Kind, paths: Sequence[Path]) -> Removal:
    own = [path for path in paths if not _leads_away(path, one.run.root)]
    return Removal(one, kind, own, sum(map(freed_bytes, own)))


def _leads_away(path: Path, root: Path) -> bool:
    """Whether a link lies on the way from the run to `path`."""
    return any(part.is_symlink() for part in (path, *path.parents) if part.is_relative_to(root))


def _needless_checkpoints(one: SurveyedRun) -> list[Path]:
    """All but the newest and those that were evaluated or exported."""
    found = all_checkpoints(one.run.checkpoints)
    inputs = [
        label
        for stage in ("evaluate", "export")
        for label in one.records.get(stage, {}).get("identity", {}).get("inputs", {})
    ]
    used = {match[1] for label in inputs if (match := _CHECKPOINT.fullmatch(label))}
    return [path for path in found[:-1] if path.name not in used]


def _moved_aside(run: RunDirectory) -> Iterator[Path]:
    """What a stage kept of an earlier configuration before it ran anew."""
    for path in sorted(run.root.iterdir()):
        if path.is_dir() and _MOVED_ASIDE.fullmatch(path.name):
            yield path


def _earlier_images(run: RunDirectory) -> Iterator[Path]:
    """Images of scored periodic evaluations, but for each suite's last; their scores stay."""
    evaluations = periodic_evaluations(run)
    last = {one.suite: one.step for one in evaluations}
    for one in evaluations:
        if one.step != last[one.suite] and one.has_images:
            yield one.folder / "images"


def _earlier_samples(run: RunDirectory) -> Iterator[Path]:
    """Best and worst images of steps but the last that has them."""
    yield from sample_folders(run)[:-1]


def _half_written(run: RunDirectory) -> Iterator[Path]:
    folders = (run.root, run.data, run.train, run.checkpoints, run.samples, run.export)
    for folder in folders:
        for path in sorted(folder.glob(".*")):
            if _HALF_WRITTEN.fullmatch(path.name):
                yield path


_LEFTOVERS: dict[Kind, Callable[[RunDirectory], Iterator[Path]]] = {
    "moved aside": _moved_aside,
    "earlier images": _earlier_images,
    "earlier samples": _earlier_samples,
    "half written": _half_written,
}
