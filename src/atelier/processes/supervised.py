"""One program in a session of its own, its output in a file, stopped with all its descendants.

Files and not pipes: a pipe breaks with its reader and blocks its writer (spec platform 4).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil


class SupervisedProcess:
    """A Python module run as a child that dies with us. Use as a context manager.

    Leaving the context, for whatever reason, leaves no descendant alive.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path
    ) -> None:
        """Start `python -m <arguments>` with stdout and stderr appended to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        guard = ["-m", "atelier.processes.parent_death", "SIGTERM", str(os.getpid())]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *guard, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(environment),
                cwd=cwd,
            )
        self._seen: set[psutil.Process] = set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code (128 + n when killed by signal n), or None while it runs."""
        self._remember_descendants()
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def stop(self, grace: float = 15.0) -> None:
        """SIGTERM to the program, then SIGKILL to every descendant left after `grace` seconds."""
        self._remember_descendants()
        if self._process.poll() is None:
            self._process.terminate()
        deadline = time.monotonic() + grace
        while self._living() and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in self._living():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _remember_descendants(self) -> None:
        """Ranks have sessions of their own and lose their parent with the agent: note them now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen.update(psutil.Process(self.pid).children(recursive=True))

    def _living(self) -> list[psutil.Process]:
        own = [] if self._process.poll() is not None else [psutil.Process(self.pid)]
        self._seen = {process for process in self._seen if process.is_running()}
        return own + list(self._seen)

    def __enter__(self) -> SupervisedProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
