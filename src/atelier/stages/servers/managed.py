"""One server under supervision: started, waited for, restarted on its port, given up at last.

A thread of its own owns the process, so any number come up, recover and stop side by side.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from atelier.config.paths import repository_root
from atelier.errors import AtelierError, ConfigError, Stopped
from atelier.legible import legible
from atelier.processes.records import read_record
from atelier.processes.supervised import SupervisedProcess
from atelier.stages.log_tail import LogTail
from atelier.stages.servers.kinds import NO_ANSWER, ServerKind
from atelier.stages.servers.ports import port_problem

logger = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request

STARTING_POLL_SECONDS, READY_POLL_SECONDS, PROCESS_POLL_SECONDS = 0.2, 2.0, 0.1
ANSWER_SECONDS = 5.0
UNREADY_SECONDS = 30.0  # without an answer, after which a server that was ready is restarted
STEADY_SECONDS = 60.0  # of being ready, after which failures are forgotten
MOST_FAILURES = 5  # in a row, after which it is not started again
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
DRAIN_SECONDS, STOP_SECONDS = 2.0, 5.0
_NO_RESTART_MENDS = (2, 126, 127)  # a bad configuration; a program that is none, or not there


@dataclass(frozen=True)
class ServerSpec:
    """What is started.

    Attributes:
        label: name in messages, such as `rewards.ocr-0`.
        kind: makes what asks one life of it.
        command: port (0: any free one) -> program and arguments; it writes its port to port_file.
        record: where the guard says what runs.
        environment: whole environment of the process.
        startup_seconds: how long it may take until it is ready.
        token: bearer token that it asks for.
    """

    label: str
    kind: Callable[[], ServerKind]
    command: Callable[[int], Sequence[str]]
    log: Path
    record: Path
    port_file: Path
    environment: Mapping[str, str] = field(repr=False)
    startup_seconds: float
    token: str | None = field(default=None, repr=False)
    host: str = "127.0.0.1"
    port: int = 0


class ManagedServer:
    """A server that is kept running from `start` to `stop`.

    Attributes:
        problem: why it is not started any more: ConfigError, or Stopped after too many failures.
        restarts: how often it was started again.
        says: what it is doing, for people who wait.
    """

    def __init__(self, spec: ServerSpec, on_change: Callable[[], None] = lambda: None) -> None:
        self.spec = spec
        self.problem: AtelierError | None = None
        self.restarts = 0
        self.says = "starting"
        self._port = spec.port
        self._ready_since: float | None = None
        self._was_ready = False
        self._begun = time.monotonic()
        self._kind = spec.kind()
        self._on_change = on_change
        self._tail = LogTail(spec.log)  # of the life that runs
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=spec.label, daemon=True)
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {spec.token}"} if spec.token else {},
            timeout=ANSWER_SECONDS,
            trust_env=False,
        )

    @property
    def url(self) -> str:
        host = f"[{self.spec.host}]" if ":" in self.spec.host else self.spec.host
        return f"http://{host}:{self._port}"

    @property
    def is_ready(self) -> bool:
        return self._ready_since is not None

    @property
    def pid(self) -> int | None:
        """Of the server itself, as its guard recorded it."""
        record = read_record(self.spec.record)
        return None if record is None else int(record["command"]["pid"])

    def identities(self) -> Mapping[str, Mapping[str, Any]]:
        """Name -> what computes, as the server says; empty while it does not answer."""
        try:
            return self._kind.identities(self._client, self._local_url())
        except NO_ANSWER:
            return {}

    def start(self) -> None:
        self._begun = time.monotonic()
        self._thread.start()

    def begin_stop(self) -> None:
        """Ask the thread to drain and stop the server; `stop` waits for it."""
        self._stopping.set()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._client.close()

    # The thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_running()
        except ConfigError as error:
            self.problem = error
        except Exception as error:  # nobody else would hear of it
            logger.exception("%s: its supervision failed", self.spec.label)
            self.problem = Stopped(f"{self.spec.label}: its supervision failed: {error}")

    def _keep_running(self) -> None:
        failures = 0
        while True:
            why = self._one_life()
            if self._stopping.is_set():
                return
            steady = self._ready_since and time.monotonic() - self._ready_since > STEADY_SECONDS
            self._ready_since = None
            failures = 1 if steady else failures + 1
            if failures == MOST_FAILURES or self._startup_is_over():
                times = f"{failures} time{'s' * (failures > 1)} in a row"
                self.problem = Stopped(
                    f"{self.spec.label}: its server failed {times} and is not started again: "
                    f"{why}. Last words: {self._last_words()}. All of its output: "
                    f"{self.spec.log}. Mend it and resume the run"
                )
                return
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1))
            logger.warning(
                "%s: %s; restarted in %.1f s (failure %d of %d); its output: %s",
                *(self.spec.label, why, pause, failures, MOST_FAILURES, self.spec.log),
            )
            self.says = f"restarting: {why}"
            if self._stopping.wait(pause):
                return
            self.restarts += 1
            if not self._was_ready:  # nobody knows its port yet, and it may be another's
                self._port = self.spec.port

    def _startup_is_over(self) -> bool:
        """Whether it had its time to become ready for the first time."""
        return not self._was_ready and time.monotonic() - self._begun > self.spec.startup_seconds

    def _last_words(self) -> str:
        return legible(self._tail.last_error().text, self.spec.token)

    def _one_life(self) -> str:
        """Run the process once. Returns why it is over.

        Raises:
            ConfigError: no restart mends it.
        """
        spec = self.spec
        spec.port_file.unlink(missing_ok=True)
        # Another program there would be asked, taken for ours, and drained.
        if self._port and (problem := port_problem(spec.host, self._port)):
            if not self._was_ready:
                raise ConfigError(f"{spec.label}: {problem}; end what does, or choose another")
            return problem
        self._kind = spec.kind()
        self._tail = LogTail(spec.log)
        with SupervisedProcess(
            spec.command(self._port),
            spec.log,
            spec.environment,
            repository_root(),
            record=spec.record,
            grace=STOP_SECONDS,
        ) as process:
            why = self._watch(process)
            if self._stopping.is_set() and self.is_ready:
                self._drain()
            return why

    def _watch(self, process: SupervisedProcess) -> str:
        """Until the process ends, does not answer, or is to be stopped."""
        answered = time.monotonic()
        next_question = 0.0
        while not self._stopping.wait(PROCESS_POLL_SECONDS):
            code = process.poll()
            if code in _NO_RESTART_MENDS:
                raise ConfigError(f"{self.spec.label}: {self._last_words()}")
            if code is not None:
                return f"it ended with exit code {code}"
            now = time.monotonic()
            if now < next_question:
                continue
            if self._asked_ready():
                answered = now
                self._note_ready(now)
            limit = UNREADY_SECONDS if self.is_ready else self.spec.startup_seconds
            if now - answered > limit or self._startup_is_over():
                return f"not ready for {limit:g} s ({self.says})"
            next_question = now + (READY_POLL_SECONDS if self.is_ready else STARTING_POLL_SECONDS)
        return "stopped"

    def _note_ready(self, now: float) -> None:
        self.says = "ready"
        if self._ready_since is None:
            self._ready_since, self._was_ready = now, True
            self._on_change()
            logger.info("%s: ready at %s", self.spec.label, self.url)

    def _asked_ready(self) -> bool:
        """Whether it is ready; if not, `says` tells why.

        Raises:
            ConfigError: it can never be.
        """
        if not self._port_known():
            return False
        try:
            waiting = self._kind.not_ready(self._client, self._local_url())
        except NO_ANSWER as error:
            self.says = f"no answer from {self.url}: {type(error).__name__}"
            if not self._was_ready:
                self.says = "starting, no answer yet"
            return False
        if waiting is not None:
            self.says = waiting
        return waiting is None

    def _port_known(self) -> bool:
        """Whether this life has said which port it listens on: before, another may answer."""
        if not self.spec.port_file.exists():
            return False
        self._port = int(self.spec.port_file.read_text(encoding="utf-8") or 0)
        return self._port != 0

    def _local_url(self) -> str:
        """Where this machine reaches it: a server on all addresses is on loopback too."""
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
        host = anywhere.get(self.spec.host)
        return self.url if host is None else f"http://{host}:{self._port}"

    def _drain(self) -> None:
        try:
            self._kind.drain(self._client, self._local_url(), DRAIN_SECONDS)
        except NO_ANSWER as error:
            logger.warning("%s: not drained: %s", self.spec.label, type(error).__name__)
