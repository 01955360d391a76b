"""The guard: starts one program and leaves nothing of it behind, however its owner ends.

    python -m atelier.processes.guard --record RECORD.json -- COMMAND...

Its standard input is a pipe whose other end only the owner holds. It ends the program and all that
descends from it when the owner is gone (the pipe closes, also after SIGKILL), when it gets SIGTERM,
or when the program itself has ended: SIGTERM to every descendant (torchrun gives each rank a
session of its own), SIGKILL to what is left after `--grace` seconds or at a second SIGTERM. As a
child sub-reaper it inherits orphans, so none escapes it; and when it is killed itself, the kernel
kills the program. RECORD.json says what runs, and in the end how it ended.

Exit code: the program's (128 + n if signal n killed it); 143 if it was stopped from outside.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from atelier.processes.parent_death import die_with_parent
from atelier.processes.records import TOKEN, identity
from atelier.tracking.run_directory import write_json

STOPPED, CANNOT_START = 143, 127
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05


class Guard:
    """One program and everything that descends from it.

    Args:
        descendants: False guards the program alone: a worker's flow runs outlive it on purpose.
    """

    def __init__(
        self, command: Sequence[str], record: Path, grace: float, descendants: bool = True
    ) -> None:
        self._record_file = record
        self._grace = grace
        self._descendants = descendants
        self._reaped: dict[int, int] = {}
        self._terms = 0
        self._wake_up = self._listen()
        if descendants and sys.platform.startswith("linux"):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        guard = os.getpid()
        self._command = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            # Safe between fork and exec: the guard has one thread, and it is the one that forks.
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, guard),
        )
        self._record: dict[str, Any] = {
            "program": Path(command[0]).name,
            "token": os.environ.get(TOKEN, ""),
            "guard": identity(os.getpid()),
            "owner": identity(os.getppid()),
            "command": identity(self._command.pid),
        }
        write_json(record, self._record)

    def run(self) -> int:
        """Wait for the end, by itself or by order, and leave nothing. Returns the exit code."""
        reason = self._wait()
        asked, killed = self._end_all()
        code = self._reaped[self._command.pid] if reason == "ended" else STOPPED
        self._record |= {"ended": reason, "exit_code": code, "asked": asked, "killed": killed}
        write_json(self._record_file, self._record)
        return code

    def _wait(self) -> str:
        """Why to stop: `ended` (the program), `owner gone` or `terminated`."""
        while True:
            ready, _, _ = select.select([sys.stdin.fileno(), self._wake_up], [], [])
            if self._wake_up in ready:
                os.read(self._wake_up, 4096)
            self._reap()
            if self._command.pid in self._reaped:
                return "ended"
            if self._terms:
                return "terminated"
            if sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 4096):
                return "owner gone"

    def _end_all(self) -> tuple[int, int]:
        """How many processes were asked to end, and how many had to be killed."""
        patience_ends = time.monotonic() + self._grace
        asked: set[psutil.Process] = set()
        killed: set[psutil.Process] = set()
        while living := self._living():
            out_of_patience = time.monotonic() > patience_ends or self._terms > 1
            for process in living:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if out_of_patience:
                        killed.add(process)
                        process.kill()
                    elif process not in asked:
                        asked.add(process)
                        process.terminate()
            time.sleep(_POLL_SECONDS)
            self._reap()
        return len(asked), len(killed)

    def _living(self) -> list[psutil.Process]:
        """All that is left to end. Orphans are the sub-reaper's children, so none is missed."""
        if not self._descendants:
            done = self._command.pid in self._reaped
            return [] if done else [psutil.Process(self._command.pid)]
        found = psutil.Process().children(recursive=True)
        return [process for process in found if not _is_zombie_of_another(process)]

    def _reap(self) -> None:
        for pid, status in _ended_children():
            code = os.waitstatus_to_exitcode(status)
            self._reaped[pid] = code if code >= 0 else 128 - code
        if self._command.pid in self._reaped:
            self._command.returncode = self._reaped[self._command.pid]

    def _listen(self) -> int:
        """Signals wake `select` up. Returns the descriptor that becomes readable."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._count)
        return read

    def _count(self, *_: object) -> None:
        self._terms += 1


def _ended_children() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _is_zombie_of_another(process: psutil.Process) -> bool:
    """A dead grandchild is its parent's to reap; ours are reaped by us before we end."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() != os.getpid()
    except psutil.NoSuchProcess:
        return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m atelier.processes.guard")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--grace", type=float, default=15.0)
    parser.add_argument("--program-alone", action="store_true")
    parser.add_argument("command", nargs="+")
    own = parser.parse_args()
    try:
        guard = Guard(own.command, own.record, own.grace, not own.program_alone)
    except OSError as error:
        sys.stderr.write(f"{own.command[0]} cannot be started: {error}\n")
        return CANNOT_START
    return guard.run()


if __name__ == "__main__":
    sys.exit(main())
