"""One program under a guard, its output in a file, stopped with all its descendants.

Files and not pipes: a pipe breaks with its reader and blocks its writer.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from atelier.processes.records import TOKEN, kill_marked

# How long a guard may take to kill and reap before it is given up itself.
_REAPING_SECONDS = 5.0


class SupervisedProcess:
    """A program that ends when we end, however we end. Use as a context manager.

    Leaving the context, for whatever reason, leaves no descendant alive. May be started from any
    thread.

    Args:
        command: program and arguments.
        log: file that stdout and stderr are appended to.
        record: JSON file where the guard says what runs; default: `processes/<log's name>.json`
            beside the log.
        grace: seconds between SIGTERM and SIGKILL.
        descendants: False ends the program alone, and not what it started.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        cwd: Path,
        record: Path | None = None,
        grace: float = 15.0,
        descendants: bool = True,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        record = record or log.parent / "processes" / f"{log.stem}.json"
        self._token = uuid.uuid4().hex
        self._grace = grace
        self._descendants = descendants
        self._code: int | None = None
        options = ["--record", str(record.resolve()), "--grace", str(grace)]
        alone = [] if descendants else ["--program-alone"]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-m", "atelier.processes.guard", *options, *alone, "--", *command],
                stdin=subprocess.PIPE,  # nobody writes: that it closes tells the guard of our end
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environment, TOKEN: self._token},
                cwd=cwd,
            )

    @property
    def pid(self) -> int:
        """Of the guard; the program and its descendants are its children."""
        return self._guard.pid

    def poll(self) -> int | None:
        """Exit code (128 + n when killed by signal n), or None while anything of it runs."""
        if self._code is None and (code := self._guard.poll()) is not None:
            if code < 0 and self._descendants:  # the guard was killed and could not clean up
                kill_marked(self._token)
            self._code = code if code >= 0 else 128 - code
        return self._code

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit code, as `poll` says it, once it has ended; None where so many seconds pass."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(seconds)
        return self.poll()

    def stop(self, grace: float | None = None) -> None:
        """End all of it: SIGTERM, and SIGKILL after `grace` seconds (default: the guard's)."""
        for patience in (self._grace if grace is None else grace, _REAPING_SECONDS):
            if self._guard.poll() is None:
                self._guard.send_signal(signal.SIGTERM)  # the second one makes it kill at once
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._guard.wait(patience)
        self._guard.kill()
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self.poll()

    def __enter__(self) -> SupervisedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
