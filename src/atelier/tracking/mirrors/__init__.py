"""Weights & Biases and SwanLab show what MLflow shows, where a run has them enabled.

Like MLflow's, these mirrors read the run directory and nothing else, so a mirror that is lost, or
was never reached, costs the run nothing and is made again at any time:

    python -m atelier.tracking.mirrors RUN_DIRECTORY

Offline, which is the default, a mirror is files below <run>/mirrors/: they are made whole, anew,
when a stage has begun or ended, and sent by the mirror's own command. Online, rows are sent as they
come, and <run>/mirrors/<name>.json says which were. A changed configuration is another run there.

    rows.py       what is shown: numbers by step, image grids
    base.py       what a mirror can do
    wandb.py, swanlab.py    the only modules that import these packages
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from atelier import telemetry
from atelier.config.digest import digest, stage_digest
from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.config.sections.mirrors import MirrorConfig
from atelier.errors import DataError
from atelier.processes.locks import hold
from atelier.report.run_data import flat, stage_records
from atelier.tracking.mirrors.base import Opening, Session
from atelier.tracking.mirrors.rows import rows
from atelier.tracking.run_directory import (
    RunDirectory,
    read_json_object,
    read_run_file,
    write_json,
)

__all__ = ["close", "flush", "has_mirrors", "sync"]

telemetry.off_by_default()
logger = logging.getLogger(__name__)

LEAVE_ALONE_SECONDS = 60.0

_left_alone_until: dict[str, float] = {}
# Of a session: mirror, run directory, and the id that the run has there.
Key = tuple[str, Path, str]
# Online runs that this process has open.
_open: dict[Key, Session] = {}


def has_mirrors(run: RunDirectory) -> bool:
    """Whether a run has any enabled."""
    return any(load_stage_config(run.config("report")).tracking.mirrors())


def sync(run: RunDirectory) -> bool:
    """Bring every enabled mirror up to date.

    Returns:
        Whether all are. Where one is not (its package or its service fails, another process is at
        it) nothing is lost, and a later call does the rest.
    """
    config = load_stage_config(run.config("report"))
    return all([_synced(run, config, *one) for one in config.tracking.mirrors()])


def flush(run: RunDirectory, deadline: float) -> None:
    """Bring each mirror up to date, for the last time in this process, and close it.

    One that fails ends its own part alone: the others go on until they have everything.

    Args:
        deadline: time.monotonic() at which to stop.
    """
    config = load_stage_config(run.config("report"))
    left = dict(config.tracking.mirrors())
    while True:
        left = {
            name: section
            for name, section in left.items()
            if not _synced(run, config, name, section) and not _is_left_alone(name)
        }
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(0.1)  # another process is at it
    close(run)


def close(run: RunDirectory) -> None:
    """End this process's part of what is open online."""
    for key in [one for one in _open if one[1] == run.root]:
        _close(key)


def _synced(run: RunDirectory, config: RunConfig, name: str, section: MirrorConfig) -> bool:
    if _is_left_alone(name):
        return False
    try:
        with hold(run.root / "locks" / f"{name}.pid") as other:
            if other is not None:
                return False
            update = _made_anew if section.mode == "offline" else _followed
            update(run, config, name, section)
    except Exception as error:  # whatever a mirror does, it must not cost the run
        _left_alone_until[name] = time.monotonic() + LEAVE_ALONE_SECONDS
        _say(name, error, "the run goes on without it for a while")
        return False
    return True


def _is_left_alone(name: str) -> bool:
    """Whether a mirror failed a short while ago, and is not tried yet."""
    return time.monotonic() < _left_alone_until.get(name, 0.0)


def _say(name: str, error: Exception, then: str) -> None:
    if not threading.main_thread().is_alive():
        return  # a stage of a moment is over, and its process no longer imports anything
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    logger.warning("%s: %.200s; %s", name, first_line, then)
    logger.debug("mirror %s", name, exc_info=error)


def _made_anew(run: RunDirectory, config: RunConfig, name: str, section: MirrorConfig) -> None:
    """All files of an offline mirror, unless they are those of the run as it is."""
    memory = _memory_file(run, name)
    stages = {key: [one["started"], one["status"]] for key, one in stage_records(run).items()}
    opening = _opening(run, config, name, section)
    state = {"of": digest([opening.id, stages, section.model_dump(mode="json")])}
    if _remembered(memory) == state:
        return
    for old in (opening.folder, memory):
        _remove(old)
    session = _opened(name, opening)
    try:
        for row in rows(run, config):
            session.log(row)
    finally:
        session.close()
    write_json(memory, state)


def _followed(run: RunDirectory, config: RunConfig, name: str, section: MirrorConfig) -> None:
    """The rows that an online mirror was not sent yet."""
    memory = _memory_file(run, name)
    opening = _opening(run, config, name, section)
    known = _remembered(memory)
    if known is None:
        raise DataError(
            f"mirrors/{memory.name} is damaged, which says what was sent; remove it, and all is "
            "sent again"
        )
    sent = set(known.get("sent", ()) if known.get("id") == opening.id else ())
    new = [row for row in rows(run, config) if row.name not in sent]
    if not new:
        return
    key = (name, run.root, opening.id)
    if key not in _open:
        _open[key] = _opened(name, opening)
    try:
        for row in new:
            _open[key].log(row)
    except Exception:
        _close(key)  # it may be of no more use: the next attempt opens another
        raise
    write_json(memory, {"id": opening.id, "sent": sorted(sent | {row.name for row in new})})


def _close(key: Key) -> None:
    """A session, which may be a broken one."""
    try:
        _open.pop(key).close()
    except Exception as error:  # whatever a mirror does, it must not cost the run
        _say(
            key[0], error, "it was not closed; `python -m atelier.tracking.mirrors` sends the rest"
        )


def _opened(name: str, opening: Opening) -> Session:
    try:
        opening.folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise DataError(f"mirrors/{name} is no folder; remove the file in its place") from error
    opens: Callable[[Opening], Session] = import_module(f"{__name__}.{name}").opened
    return opens(opening)


def _opening(run: RunDirectory, config: RunConfig, name: str, section: MirrorConfig) -> Opening:
    description = read_run_file(run)
    configuration = stage_digest(config, "report")
    values = config.model_dump(mode="json", exclude={"tracking"})
    return Opening(
        id=f"{description['id']}-{configuration[:8]}",
        project=section.project,
        run_name=section.run_name or str(description["run_name"]),
        parameters=dict(flat(values)),
        folder=run.root / "mirrors" / name,
        mode=section.mode,
    )


def _remembered(memory: Path) -> dict[str, Any] | None:
    """What was sent, or made; nothing before anything was, and None where it cannot be read."""
    if not memory.exists():
        return {}
    try:
        known = read_json_object(memory)
    except DataError:
        return None
    sent = known.get("sent", [])
    is_sound = isinstance(sent, list) and all(isinstance(one, str) for one in sent)
    return known if is_sound else None


def _remove(path: Path) -> None:
    """A folder or a file, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _memory_file(run: RunDirectory, name: str) -> Path:
    return run.root / "mirrors" / f"{name}.json"
