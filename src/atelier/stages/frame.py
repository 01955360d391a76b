"""What every stage has in common: done once, never twice, and nothing produced is ever lost.

A stage folder carries `stage.json`, written when the stage starts and again, last of all files,
when it ends: identity (digest of the configuration that shapes the stage, sha256 of its inputs),
status, seconds, sha256 of its outputs, summary. With an equal identity a finished stage is skipped
and an unfinished one goes on in its folder; with another one the folder is moved aside.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atelier.config.digest import stage_digest
from atelier.config.paths import repository_root, without_machine_paths
from atelier.config.placement import gpus_wanted
from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.disk import is_full, stopped_when_full
from atelier.errors import ConfigError, DataError
from atelier.processes.gpus import claim_gpus
from atelier.processes.locks import hold
from atelier.report.run_data import stage_folder
from atelier.stages import mirroring, quiet
from atelier.stages.files import identity_of, sha256
from atelier.stages.run_file import ensure_run, shown_path
from atelier.tracking.run_directory import STAGES, RunDirectory, read_json_object, write_json

logger = logging.getLogger(__name__)

RECORD = "stage.json"
COMPUTES = ("baseline", "train", "evaluate", "export")


@dataclass(frozen=True)
class Stage:
    """One stage of one run.

    Attributes:
        name: one of `run_directory.STAGES`.
        folder: the only folder it writes.
        inputs: files and folders of earlier stages, and the user's, that its result depends on.
        outputs: glob patterns in `folder` of what it leaves, hashed into its record.
    """

    name: str
    run: RunDirectory
    config: RunConfig
    folder: Path
    inputs: Sequence[Path]
    outputs: Sequence[str]

    def execute(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Do the work unless it is done, and return its summary.

        Paths of a configuration are relative to the repository, so that is where the work runs.

        Raises:
            ConfigError: another process writes this stage, or an input is missing.
        """
        with (
            stopped_when_full(self.folder),
            _only_writer(self.run, self.name),
            contextlib.chdir(repository_root()),
        ):
            identity = self._identity()
            record = read_record(self.folder)
            if record and self._is_done(record, identity):
                logger.info("%s: done before, skipped", self.name)
                return dict(record["summary"])
            if self.folder.exists() and (record or {}).get("identity") != identity:
                self._move_aside(record)
            if self.name in COMPUTES and gpus_wanted(self.config):
                # Also what its servers will have: a process claims once.
                claim_gpus(gpus_wanted(self.config), wait=self.config.launch.wait_for_gpus)
            is_resumed = record is not None and record["identity"] == identity
            return self._work(work, identity, _attempts(record) if record and is_resumed else [])

    def is_done(self) -> bool:
        """Whether `execute` would find nothing to do."""
        record = read_record(self.folder)
        return record is not None and self._is_done(record, self._identity())

    def _work(
        self,
        work: Callable[[], dict[str, Any]],
        identity: dict[str, Any],
        earlier: list[dict[str, Any]],
    ) -> dict[str, Any]:
        started = time.time()
        record: dict[str, Any] = {
            "stage": self.name,
            "identity": identity,
            "started": _utc(started),
            "status": "running",
            **({"earlier": earlier} if earlier else {}),
        }
        write_json(self.folder / RECORD, record)
        logger.info("%s: started", self.name)
        try:
            with stopped_when_full(self.folder):
                summary = work()
        except BaseException as error:
            message = without_machine_paths(f"{type(error).__name__}: {error}", self.run.root)
            record |= {"status": "failed", "error": message}
            self._end_failed(record, started)
            raise
        record |= {"status": "done", "summary": summary, "outputs": self._hash_outputs()}
        self._end(record, started)
        logger.info("%s: done in %.1f s", self.name, record["seconds"])
        if self.name == STAGES[-1]:
            mirroring.flush(self.run)
        return summary

    def _end_failed(self, record: dict[str, Any], started: float) -> None:
        """The error that ended the stage is what counts, also where its record has no room."""
        try:
            self._end(record, started)
        except OSError as error:
            if not is_full(error):
                raise
            logger.warning("%s: no room on the disk for its record", self.name)

    def _end(self, record: dict[str, Any], started: float) -> None:
        record |= {"ended": _utc(time.time()), "seconds": round(time.time() - started, 3)}
        write_json(self.folder / RECORD, record)
        mirroring.follow(self.run)

    def _identity(self) -> dict[str, Any]:
        missing = [str(path) for path in self.inputs if not path.exists()]
        if missing:
            raise ConfigError(
                f"{self.name}: {', '.join(missing)} does not exist; run the earlier stages first"
            )
        return {
            "digest": stage_digest(self.config, self.name),
            "inputs": {self._label(path): identity_of(path) for path in self.inputs},
        }

    def _label(self, path: Path) -> str:
        """Relative to the run or the repository where it can be: a run may be moved."""
        for root in (self.run.root, repository_root()):
            if path.is_relative_to(root):
                return path.relative_to(root).as_posix()
        return str(path)

    def _is_done(self, record: dict[str, Any], identity: dict[str, Any]) -> bool:
        """Finished, of the same identity, and every output is still there as it was."""
        if record["identity"] != identity or record["status"] != "done":
            return False
        return bool(record["outputs"] == self._hash_outputs())

    def _hash_outputs(self) -> dict[str, str]:
        found = {path for pattern in self.outputs for path in self.folder.glob(pattern)}
        return {
            path.relative_to(self.folder).as_posix(): sha256(path)
            for path in sorted(found)
            if path.is_file()
        }

    def _move_aside(self, record: dict[str, Any] | None) -> None:
        numbers = (n for n in range(1, 1_000_000) if not self._old(n).exists())
        old = self._old(next(numbers))
        self.folder.rename(old)
        why = "its configuration or inputs changed" if record else "it has no record"
        logger.warning("%s: %s, so what was there is kept as %s", self.name, why, old.name)

    def _old(self, number: int) -> Path:
        return self.folder.with_name(f"{self.folder.name}.old-{number}")


def open_stage(
    name: str,
    run: RunDirectory,
    inputs: Callable[[RunDirectory, RunConfig], Sequence[Path]],
    outputs: Sequence[str],
) -> Stage:
    """The stage, with its own configuration file read and checked.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    quiet.libraries_by_default()
    run = RunDirectory(run.root.resolve())
    config = load_stage_config(run.config(name))
    with stopped_when_full(run.root):
        ensure_run(run, config)
    return Stage(name, run, config, stage_folder(run, name), inputs(run, config), outputs)


def read_record(folder: Path) -> dict[str, Any] | None:
    """`stage.json` of a stage folder, or None when there is none.

    Raises:
        DataError: it is no stage's record.
    """
    path = folder / RECORD
    if not path.exists():
        return None
    mend = f"put it back, or remove it: the stage is done again then, and {folder.name} kept aside"
    try:
        record = read_json_object(path)
    except DataError as error:
        raise DataError(f"{error}; {mend}") from error
    required: dict[str, type] = {"identity": dict, "status": str}
    if record.get("status") == "done":
        required |= {"outputs": dict, "summary": dict}
    if wrong := sorted(n for n, kind in required.items() if not isinstance(record.get(n), kind)):
        raise DataError(
            f"{path}: {', '.join(wrong)}: missing or of a wrong type: not a stage's record; {mend}"
        )
    return record


def _attempts(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts at a stage up to this record's, which the next one goes on from; one that was
    killed has no seconds."""
    last = {"started": record.get("started"), "seconds": record.get("seconds")}
    return [*record.get("earlier", []), last]


@contextmanager
def _only_writer(run: RunDirectory, stage: str) -> Iterator[None]:
    with hold(run.root / "locks" / f"{stage}.pid") as other:
        if other is not None:
            raise ConfigError(
                f"{stage}: process {other} is writing {shown_path(run.root)}; "
                "wait for it, or stop it, and try again"
            )
        yield


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
