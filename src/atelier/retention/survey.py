"""Runs below a folder: how old, how large, finished or not, and whether somebody writes them."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atelier.errors import DataError
from atelier.processes.locks import holder
from atelier.processes.records import is_alive, is_elsewhere, read_record
from atelier.report.run_data import stage_records
from atelier.tracking.run_directory import STAGES, RunDirectory, read_run_file

# Between two stages a run holds no lock: an unfinished one that changed just now is not idle.
IDLE_AFTER_SECONDS = 15 * 60.0


@dataclass(frozen=True)
class SurveyedRun:
    """A run, its records, and why it must be left alone (`busy`, if anything)."""

    run: RunDirectory
    description: dict[str, Any]
    records: dict[str, dict[str, Any]]
    busy: str | None

    @property
    def name(self) -> str:
        return str(self.description.get("run_name") or self.run.root.name)

    @property
    def created(self) -> datetime:
        return _time(self.description.get("created"))

    @property
    def last_used(self) -> datetime:
        """When a stage last began or ended."""
        moments = [record.get("ended") or record.get("started") for record in self.records.values()]
        return max([self.created, *map(_time, moments)])

    @property
    def size(self) -> int:
        """Bytes it takes on the disk."""
        return freed_bytes(self.run.root)

    @property
    def finished(self) -> bool:
        """Whether every stage is done."""
        return all(self.records.get(stage, {}).get("status") == "done" for stage in STAGES)


def survey(root: Path) -> tuple[list[SurveyedRun], list[str]]:
    """All runs directly below `root`, the newest first; and what is there that is none, and why.

    Links are not followed: whatever they lead to is not below `root`.
    """
    runs, others = [], []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name.startswith("."):
            continue
        if path.is_symlink():
            others.append(f"{path.name}: a link; left alone")
        elif path.is_dir():
            try:
                runs.append(_look_at(RunDirectory(path)))
            except DataError as error:
                others.append(f"{path.name}: {error}; left alone")
    return sorted(runs, key=lambda one: one.created, reverse=True), others


def _look_at(run: RunDirectory) -> SurveyedRun:
    description = read_run_file(run)
    records = stage_records(run)
    found = SurveyedRun(run, description, records, _writer(run))
    idle = (datetime.now(UTC) - _last_change(run)).total_seconds()
    if found.busy is None and not found.finished and idle < IDLE_AFTER_SECONDS:
        busy = f"unfinished, and changed {idle / 60:.0f} minutes ago"
        return SurveyedRun(run, description, records, busy)
    return found


def lock_files(run: RunDirectory) -> list[Path]:
    """The locks of everybody who may write the run."""
    names = {f"{stage}.pid" for stage in STAGES} | {"mlflow.pid"}
    names |= {path.name for path in (run.root / "locks").glob("*.pid")}
    return [run.root / "locks" / name for name in sorted(names)] + [run.train / "lock"]


def _writer(run: RunDirectory) -> str | None:
    """Who writes the run now."""
    for path in lock_files(run):
        if (pid := holder(path)) is not None:
            return f"being written by process {pid} ({path.stem})"
    for path in run.processes.glob("*.json"):
        record = read_record(path)
        if record is None or "ended" in record:
            continue
        guard = record["guard"]
        if is_elsewhere(guard):
            return (
                f"process {guard['pid']} of machine {guard['host']} may run for it, which is not "
                f"seen from here; once that one has ended, remove {path.parent.name}/{path.name}"
            )
        if is_alive(guard):
            return f"process {guard['pid']} runs for it ({path.stem})"
    return None


def _last_change(run: RunDirectory) -> datetime:
    """The newest time stamp of the files that every stage writes."""
    files = [run.run_file, run.metrics, run.train / "trainer.log", *run.root.glob("*/stage.json")]
    times = []
    for path in files:
        with suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return datetime.fromtimestamp(max(times, default=0.0), UTC)


def freed_bytes(path: Path) -> int:
    """What removing a file or folder gives back. Files that are linked elsewhere give nothing."""
    return sum(
        info.st_blocks * 512
        for info in _files(path)
        if stat.S_ISREG(info.st_mode) and info.st_nlink == 1
    )


def _files(path: Path) -> Iterator[Any]:
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode):
        yield info
        return
    for child in path.iterdir():
        with suppress(FileNotFoundError):
            yield from _files(child)


def _time(text: Any) -> datetime:
    """A moment as the records write it; the beginning of time where there is none."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
