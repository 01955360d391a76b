"""Taking away what was chosen, under the run's locks, so that nobody begins to write meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from atelier.disk import amount
from atelier.processes.locks import hold
from atelier.retention.removals import Removal
from atelier.retention.survey import lock_files
from atelier.tracking.run_directory import (
    PRUNED,
    RunDirectory,
    read_json_object,
    read_pruned,
    write_json,
)

GOING = ".pruned."


def apply(removals: Sequence[Removal]) -> Iterator[str]:
    """Remove, and say what was done, a line each. What cannot be removed is said and passed over.

    Yields:
        Lines beginning with `removed` or `kept`.
    """
    for one in removals:
        label = f"{one.run.run.root.name}: {one.what}"
        try:
            with _locked(one.run.run) as other:
                if other is not None:
                    yield f"kept     {label}: process {other} began to write it"
                    continue
                _remove(one)
        except OSError as error:
            yield f"kept     {label}: {error.strerror or error}"
            continue
        yield f"removed  {label} ({amount(one.freed)})"


@contextmanager
def _locked(run: RunDirectory) -> Iterator[str | None]:
    """Hold every lock of the run, or say who has one."""
    with ExitStack() as stack:
        locks = [path for path in lock_files(run) if path.parent.is_dir()]
        others = [stack.enter_context(hold(path)) for path in locks]
        yield next((other for other in others if other is not None), None)


def _remove(removal: Removal) -> None:
    run = removal.run.run
    if removal.kind == "run":
        # Renamed first: whoever looks for the run finds all of it or nothing.
        going = run.root.with_name(f"{GOING}{run.root.name}")
        run.root.rename(going)
        shutil.rmtree(going)
        return
    if removal.kind == "checkpoints":
        _note_checkpoints(run, [path.name for path in removal.paths])
    for path in removal.paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _note_checkpoints(run: RunDirectory, names: Sequence[str]) -> None:
    """Say what is about to go: for whoever looks for it, and so that training counts as done."""
    path = run.checkpoints / PRUNED
    before = read_pruned(run.checkpoints).get("checkpoints", [])
    today = datetime.now(UTC).date().isoformat()
    write_json(path, {"checkpoints": sorted({*before, *names}), "on": today})
    record_file = run.train / "stage.json"
    record = read_json_object(record_file)
    gone = {f"checkpoints/{name}/MANIFEST.json" for name in names}
    outputs = {name: sha for name, sha in record["outputs"].items() if name not in gone}
    write_json(record_file, record | {"outputs": outputs})


def finish_earlier(root: Path) -> None:
    """Remove the rest of runs that were being removed when their remover was killed."""
    for path in root.glob(f"{GOING}*"):
        if not path.is_symlink():
            shutil.rmtree(path)
