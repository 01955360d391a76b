"""Faults of living reward services, and what becomes of batches meanwhile.

Real processes: a service that scores the size as JPEG, and one before it that misbehaves on
command. Every image has another score, so that a wrong one, or one in another place, shows.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from atelier.rewards import Missing, Reward, RewardSet
from atelier.rewards.base import Score
from tests.support.reward_services import NAME, Scripted, batch_of, client, wait_until

BATCHES = [batch_of(range(20 * n + 1, 20 * n + 7), side=24) for n in range(4)]
RIGHT = [list(Scripted().score(batch).values) for batch in BATCHES]
assert len({score for scores in RIGHT for score in scores}) > 20


@dataclass
class Site:
    """The processes."""

    folder: Path
    port: int
    service: subprocess.Popen[bytes] | None = None
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def before(self) -> str:
        """URL of what misbehaves on command."""
        return f"http://127.0.0.1:{(self.folder / 'before.port').read_text()}"

    def serve(self, quality: int = 95) -> None:
        """Start the service, and wait until it is ready."""
        config = self.folder / "rewards.yaml"
        config.write_text(f"rewards: {{{NAME}: {{quality: {quality}}}}}\n")
        arguments = ["--config", str(config), "--port", str(self.port)]
        self.service = self._started("atelier.rewards.service", *arguments)
        wait_until(self._is_ready, 60)

    def misbehave(self, fault: str) -> None:
        """From the next request on; with an empty name, behave."""
        (self.folder / "command").write_text(fault)

    def stop(self) -> None:
        """Suspend the service; a signal takes a moment to arrive."""
        assert self.service is not None
        self.service.send_signal(signal.SIGSTOP)
        state = psutil.Process(self.service.pid)
        wait_until(lambda: state.status() == psutil.STATUS_STOPPED)

    def go_on(self) -> None:
        assert self.service is not None
        self.service.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self.service is not None
        self.service.kill()
        self.service.wait()

    def stranger(self) -> None:
        """Something else listens where the service was."""
        arguments = [str(self.port), "--bind", "127.0.0.1", "--directory", str(self.folder)]
        self.others.append(self._started("http.server", *arguments))
        wait_until(lambda: httpx.get(self.url, trust_env=False).status_code == 200)

    def stranger_leaves(self) -> None:
        stranger = self.others.pop()
        stranger.kill()
        stranger.wait()

    def start_before(self) -> None:
        port_file = self.folder / "before.port"
        arguments = [self.url, str(self.folder / "command"), str(port_file)]
        self.misbehave("")
        self.others.insert(0, self._started("tests.support.faulty_service", *arguments))
        wait_until(port_file.exists)

    def close(self) -> None:
        for process in [*self.others, self.service]:
            if process is not None:
                process.kill()
                process.wait()

    def _is_ready(self) -> bool:
        assert self.service is not None
        assert self.service.poll() is None, (self.folder / "log").read_text()
        return httpx.get(f"{self.url}/readyz", trust_env=False, timeout=2).status_code == 200

    def _started(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A service and what stands before it, on free ports, ready."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    made = Site(folder, port)
    try:
        made.serve()
        made.start_before()
        yield made
    finally:
        made.close()


@dataclass(frozen=True)
class Fault:
    """How it begins and how it is mended. `on_wire`: of what stands before the service."""

    begin: Callable[[Site], object]
    mend: Callable[[Site], object]
    on_wire: bool = False


def _process(begin: Callable[[Site], object], mend: Callable[[Site], object]) -> Fault:
    return Fault(begin, mend)


def _wire(name: str) -> Fault:
    return Fault(lambda site: site.misbehave(name), lambda site: site.misbehave(""), True)


def _taken(site: Site) -> None:
    site.kill()
    site.stranger()


def _given_back(site: Site) -> None:
    site.stranger_leaves()
    site.serve()


def _replaced(site: Site) -> None:
    site.kill()
    site.serve(quality=10)


def _put_back(site: Site) -> None:
    site.kill()
    site.serve()


GRID = {
    "kill -9": _process(Site.kill, Site.serve),
    "SIGSTOP": _process(Site.stop, Site.go_on),
    "its port taken by another program": _process(_taken, _given_back),
    "replaced by another version": _process(_replaced, _put_back),
    "every answer a 500": _wire("500"),
    "JSON cut in the middle": _wire("cut JSON"),
    "connection closed in the middle": _wire("truncated"),
    "connection reset in the middle": _wire("reset"),
    "a score too few": _wire("too few"),
    "NaN": _wire("NaN"),
    "headers that drip": _wire("drip headers"),
    "a body that drips": _wire("drip"),
    "no answer": _wire("hang"),
    "answers mixed up": _wire("answers mixed up"),
}


@dataclass(frozen=True)
class Outcome:
    """What became of batches.

    Attributes:
        during: scores of each batch that would not wait for the mending.
        after: scores of a batch that waited.
        recovery: seconds from the mending to its scores.
    """

    during: list[list[Score]]
    after: list[Score]
    recovery: float


def outcome(place: Site, fault: Fault, impatience: float = 1.5) -> Outcome:
    """Score before, during and after a fault.

    Args:
        impatience: seconds that batches wait for their scores during the fault; a third of it is
            what one request may take.
    """
    url = place.before if fault.on_wire else place.url
    timeout = impatience / 3
    with (
        client(url, deadline=impatience, timeout=timeout) as hurried,
        client(url, deadline=120.0, timeout=timeout) as patient,
        ThreadPoolExecutor(1) as pool,
    ):
        for scorer in (hurried, patient):
            assert list(scorer.score(BATCHES[0]).values) == RIGHT[0]
        fault.begin(place)
        waiting = pool.submit(lambda: (patient.score(BATCHES[0]), time.monotonic()))
        rewards = RewardSet([Reward(hurried, workers=4)], 2 * impatience)
        submitted = [rewards.submit(batch) for batch in BATCHES]
        during = [list(one.futures[NAME].result().value.values) for one in submitted]
        rewards.close()
        fault.mend(place)
        mended = time.monotonic()
        scores, ended = waiting.result()
        return Outcome(during, list(scores.values), ended - mended)


def right_or_missing(scores: Sequence[Score], right: Sequence[float]) -> bool:
    """Whether every score is that of its own image, or says why there is none."""
    return len(scores) == len(right) and all(
        bool(one.reason) if isinstance(one, Missing) else one == wanted
        for one, wanted in zip(scores, right, strict=True)
    )
