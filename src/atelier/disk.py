"""A disk that is full, or may not be written: recognised whoever met it, and a stop that can be
resumed instead of a crash."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.errors import Stopped

_NUMBERS = (errno.ENOSPC, errno.EDQUOT)
# What no room would mend, and how it is mended.
_REFUSED = {
    errno.EROFS: "it is mounted read-only: mount it to be written",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EFBIG: "a file may not be so large: raise `ulimit -f`, or use a disk that takes it",
}
# Libraries that write by themselves keep the number to themselves: safetensors, shutil, SQLite.
_WORDS = ("No space left on device", "StorageFull", "Disk quota exceeded", "disk is full")


# How safetensors tells the number of an error of the system.
_IN_WORDS = re.compile(r"(?:os error |code: )(\d+)")


def is_full(error: BaseException) -> bool:
    """Whether an error, or one that it came from, is a full disk or a used-up quota."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, OSError) and found.errno in _NUMBERS:
            return True
        if not isinstance(found, Stopped) and any(words in str(found) for words in _WORDS):
            return True
        found = found.__cause__ or found.__context__
    return False


def refusal(error: BaseException) -> str | None:
    """How to mend that something may not be written; None where that is not what an error says."""
    if isinstance(error, OSError) and error.errno is not None:
        return _REFUSED.get(error.errno)
    told = _IN_WORDS.search(str(error))
    return _REFUSED.get(int(told[1])) if told else None


def require_writable(folder: Path) -> None:
    """Before hours of work: files can be written into a folder, which is made.

    Raises:
        Stopped: not there.
    """
    what = "what is saved there"
    with stopped_when_full(folder, what), stopped_when_refused(folder, what):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.write_bytes(b"written to see whether it can be")
        probe.unlink()


@contextmanager
def stopped_when_full(folder: Path, what: str = "", needed: int | None = None) -> Iterator[None]:
    """Inside, a full disk becomes Stopped (75), with what is free and what is needed.

    Args:
        folder: what is written into. The message names it from the run's directory on, if it lies
            in one, because messages end up in files that may travel.
        what: what is written, such as "the checkpoint of step 40".
        needed: its bytes, where they are known.

    Raises:
        Stopped: the disk is full.
    """
    try:
        yield
    except Stopped:
        raise
    except Exception as error:
        if not is_full(error):
            raise
        raise Stopped(full_disk_message(_place(folder, error), folder, what, needed)) from error


@contextmanager
def stopped_when_refused(folder: Path, what: str) -> Iterator[None]:
    """Inside, where nothing is done but writing into a folder, a refusal becomes Stopped (75).

    Raises:
        Stopped: the folder is read-only, somebody else's, or takes no file so large.
    """
    try:
        yield
    except Exception as error:
        mend = refusal(error)
        if mend is None:
            raise
        raise Stopped(
            f"{_place(folder, error)}: {what} cannot be written: {mend}. What was finished before "
            "is whole; then resume"
        ) from error


def full_disk_message(place: str, folder: Path, what: str = "", needed: int | None = None) -> str:
    """What a person has to know to go on."""
    need = f", {what or 'it'} needs {amount(needed)}" if needed is not None else ""
    doing = f" while writing {what}" if what and needed is None else ""
    return (
        f"{place}: the disk is full{doing}: {amount(free_bytes(folder))} free{need}. What was "
        "finished before is whole: make room (`atelier prune` shows what can go), then resume"
    )


def free_bytes(folder: Path) -> int:
    """What may still be written on the disk that `folder` is on, or will be."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def amount(count: int) -> str:
    """Bytes for people, in powers of 1000."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _place(folder: Path, error: BaseException) -> str:
    """The file that did not fit if the error names it, else the folder, from the run on."""
    name = error.filename if isinstance(error, OSError) else None
    path = Path(name) if isinstance(name, str) and Path(name).is_absolute() else folder
    for parent in (path, *path.parents):
        if (parent / "run.json").exists() or (parent / "config").is_dir():
            return path.relative_to(parent.parent).as_posix()
    return path.name
