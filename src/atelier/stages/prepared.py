"""Prepared prompt tables that runs share, under DVC: data/prepared/<key>/ and <key>.dvc beside it.

The key is that of the configuration, of the files it names and of the code that makes the tables:
an equal key is equal data. Only flows use this, inside their `dvc` slot (tasks/dataset.py); a
`dvc repro` makes its tables in outputs/data, which is DVC's own already.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import atelier.data
from atelier.abandoned import beside, remove_abandoned
from atelier.config.digest import digest, stage_digest
from atelier.config.paths import from_root, repository_root, tracking_file
from atelier.config.prompt_files import named_files
from atelier.config.schema import RunConfig
from atelier.config.sft_rules import picture_files
from atelier.data import versioning
from atelier.errors import DataError
from atelier.processes.locks import hold
from atelier.stages.files import identity_of
from atelier.stages.prepare import input_paths
from atelier.stages.run_file import shown_path

logger = logging.getLogger(__name__)

KEY_DIGITS = 12
_NEW = (
    "prepare: git shows a new %s.dvc: commit it to share or reproduce runs of these data, else "
    "delete it at will (docs/data.md)"
)
WAIT_SECONDS = 0.5


def prepared_root() -> Path:
    """data/prepared in the repository, or `prepared` in the directory ATELIER_DATA names."""
    return from_root(os.environ.get("ATELIER_DATA") or "data") / "prepared"


def missing_inputs(config: RunConfig) -> list[Path]:
    """The user's own files of prompts and captions that DVC tracks and that are not in the
    workspace."""
    files = [one.path for one in named_files(config.data)]
    files += [file for _, file in picture_files(config.data.sft)]
    paths = [from_root(file) for file in files]
    return [path for path in paths if not path.exists() and tracking_file(path)]


def folder_of(config: RunConfig) -> Path:
    """Where this configuration's tables lie or will lie.

    Raises:
        DataError: a prompt file is missing or malformed.
    """
    code = sorted(Path(atelier.data.__file__).parent.rglob("*.py"))
    parts = {
        "configuration": stage_digest(config, "prepare"),
        "inputs": [identity_of(path) for path in input_paths(config)],
        "code": [identity_of(path) for path in code],
    }
    return prepared_root() / digest(parts)[:KEY_DIGITS]


def is_ready(folder: Path) -> bool:
    """Whether the tables are there as DVC knows them."""
    file = folder.with_name(folder.name + ".dvc")
    return (
        file.is_file()
        and folder.is_dir()
        and versioning.md5_of(folder) == versioning.tracked_md5(file)
    )


def provide(config: RunConfig) -> Path:
    """The folder with the tables: as it is, else from DVC's cache or remote, else made.

    Raises:
        DataError: a prompt file cannot be had or read, or a DVC command failed.
        Stopped: DVC was kept busy for too long.
    """
    for path in missing_inputs(config):
        versioning.pull(path)
    folder = folder_of(config)
    with _alone(folder):
        if not is_ready(folder) and tracking_file(folder) is not None:
            try:
                versioning.pull(folder)
            except DataError as error:
                logger.info("%s is made again: %s", folder.name, error)
        if not is_ready(folder):
            is_new = tracking_file(folder) is None
            _make(config, folder)
            versioning.add(folder)
            if is_new:
                logger.info(_NEW, shown_path(folder))
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for another process at the same tables: runs of several seeds start together, and not
    all on one server, whose slot would keep them apart."""
    lock = repository_root() / ".atelier" / "locks" / f"prepared-{folder.name}.pid"
    while True:
        with hold(lock) as other:
            if other is None:
                yield
                return
        time.sleep(WAIT_SECONDS)


def _make(config: RunConfig, folder: Path) -> None:
    """Aside and then renamed: a folder that is there is whole."""
    from atelier.data.prepare import prepare

    remove_abandoned(folder)
    aside = beside(folder)
    aside.mkdir(parents=True)
    try:
        with contextlib.chdir(repository_root()):  # a configuration's paths are relative to it
            prepare(config.data, aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
