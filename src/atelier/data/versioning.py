"""What DVC says of the data, and the few of its commands that a run needs.

DVC locks paths while it works on them and refuses at once what it finds locked; `run_dvc` tries
again until a deadline. What can be known from a `.dvc` file is read there: a DVC process takes two
seconds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from atelier.config.paths import repository_root, tracking_file
from atelier.errors import DataError, Stopped
from atelier.telemetry import off_by_default

logger = logging.getLogger(__name__)

BUSY = ("is busy, it is being blocked by", "Unable to acquire lock")
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 5.0
_HOLDER = re.compile(r"\(PID (\d+)\): (.*)")
_IN_ADDRESS = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def can_track(path: Path) -> bool:
    """Whether `path` lies in a DVC repository: this one, where it is under Git."""
    root = repository_root()
    has_git = any((folder / ".git").exists() for folder in (root, *root.parents))
    return path.is_relative_to(root) and (root / ".dvc").is_dir() and has_git


def add(path: Path, deadline_seconds: float = 120.0) -> None:
    """Put a file or folder under DVC, or a changed one's new version.

    Raises:
        DataError, Stopped: as `run_dvc`.
    """
    run_dvc(["add", _shown(path)], deadline_seconds)


def pull(path: Path, deadline_seconds: float = 120.0) -> None:
    """Make a tracked path what its .dvc file says: from the cache, else (only then) the remote.

    Args:
        path: the tracked file or folder; what stands there is replaced.

    Raises:
        DataError: neither has it, or as `run_dvc`.
        Stopped: as `run_dvc`.
    """
    file = tracking_file(path)
    if file is None:
        raise DataError(f"{_shown(path)}: no .dvc file tracks it")
    run_dvc(["pull", "--force", _shown(file)], deadline_seconds)


def run_dvc(arguments: Sequence[str], deadline_seconds: float = 120.0) -> str:
    """Run a DVC command in the repository and return what it prints.

    While another process holds what the command needs, it is tried again.

    Args:
        deadline_seconds: how long to try; a command that works is given the time it takes.

    Raises:
        Stopped: still held at the deadline. The message names the holder.
        DataError: the command failed otherwise. Never with a secret of the environment or of a
            remote's address in the message.
    """
    started, wait = time.monotonic(), FIRST_WAIT_SECONDS
    command = shown_command(arguments)
    while True:
        done = _start(arguments)
        if done.returncode == 0:
            return done.stdout
        output = without_secrets(done.stdout + done.stderr)
        if not any(words in output for words in BUSY):
            raise DataError(f"`{command}` failed (exit code {done.returncode}): {_reason(output)}")
        holder = _holder(output)
        if time.monotonic() - started + wait > deadline_seconds:
            raise Stopped(
                f"`{command}`: DVC was kept busy for {deadline_seconds:.0f} s by {holder}; "
                "wait for it, and resume the run"
            )
        logger.info("`%s` waits for %s", command, holder)
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)


def tracked_md5(file: Path) -> str:
    """What a .dvc file holds: the md5 of a file, or `<md5>.dir` of a folder.

    Raises:
        DataError: it is not a .dvc file of one file or folder.
    """
    try:
        (out,) = yaml.safe_load(file.read_text(encoding="utf-8"))["outs"]
        return str(out["md5"])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise DataError(f"{_shown(file)}: not a .dvc file of one file or folder") from error


def md5_of(path: Path) -> str:
    """The md5 DVC gives to a file, or to a folder: with the suffix `.dir`."""
    if path.is_dir():
        files = [one for one in path.rglob("*") if one.is_file()]
        return md5_of_folder(path, [one.relative_to(path).as_posix() for one in files])
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def md5_of_folder(folder: Path, names: Sequence[str]) -> str:
    """The md5 DVC gives to a folder that holds these files: that of their list, as JSON
    (dvc_data.hashfile.tree.Tree)."""
    listed = [{"md5": md5_of(folder / name), "relpath": name} for name in sorted(names)]
    return hashlib.md5(json.dumps(listed).encode(), usedforsecurity=False).hexdigest() + ".dir"


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` without user names and passwords in addresses, and without the values of variables
    whose names say that they are secret."""
    text = _IN_ADDRESS.sub("***", text)
    for name, value in environment.items():
        if _SECRET_NAME.search(name) and len(value) >= 6:
            text = text.replace(value, "***")
    return text


def shown_command(arguments: Sequence[str]) -> str:
    return without_secrets(" ".join(["dvc", *arguments]))


def _start(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """One DVC process. It ends with us: nobody would wait for what it fetches."""
    guarded = ["atelier.processes.parent_death", "SIGTERM", str(os.getpid()), "dvc"]
    environment = {**os.environ}
    off_by_default(environment)
    return subprocess.run(
        [sys.executable, "-m", *guarded, *arguments],
        cwd=repository_root(),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _holder(output: str) -> str:
    """Who holds what was asked for. The repository's own lock, held for moments, names nobody."""
    found = dict(_HOLDER.findall(output))
    named = [f"process {pid} ({command.strip()})" for pid, command in found.items()]
    return ", ".join(named) or "another DVC process"


def _reason(output: str) -> str:
    """DVC's own words: its errors, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return "; ".join(errors or lines[-1:]) or "no message"


def _shown(path: Path) -> str:
    root = repository_root()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
