"""Reward services for tests: the real application in a thread, and servers that misbehave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import uvicorn
from PIL import Image

from atelier.config.digest import scorer_digest
from atelier.config.sections.rewards import JpegConfig
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.client.remote import RemoteScorer
from atelier.rewards.scorers.jpeg import JpegIncompressibility
from atelier.rewards.service.__main__ import bound_socket
from atelier.rewards.service.app import Limits, create_app
from atelier.rewards.service.protocol import QUEUE_HEADER
from atelier.rewards.service.served import ServedReward

PASSED_ON = ("Accept-Post", QUEUE_HEADER)
NAME = "jpeg_incompressibility"
DIGEST = scorer_digest(NAME, JpegConfig())


class Scripted(JpegIncompressibility):
    """The JPEG reward, but for what a test changes: `given` sees every batch but golden ones."""

    def __init__(self, given: Callable[[ScoreBatch], Sequence[Score]] | None = None) -> None:
        super().__init__(JpegConfig())
        self._given = given
        self.batches: list[ScoreBatch] = []

    def score(self, batch: ScoreBatch) -> Scores:
        if self._given is None or batch.prompts[0] == "grey":
            return super().score(batch)
        self.batches.append(batch)
        return Scores(self.name, self._given(batch))


def batch_of(shades: Sequence[int], side: int = 16) -> ScoreBatch:
    """Pictures of 0..shade noise, each with other JPEG sizes."""
    images = [Image.effect_noise((side, side), 1 + shade).convert("RGB") for shade in shades]
    count = len(images)
    return ScoreBatch(
        images,
        [f"p{i}" for i in range(count)],
        [{"n": i} for i in range(count)],
        list(range(count)),
    )


@contextmanager
def service(
    scorer: JpegIncompressibility | None = None,
    *,
    name: str = NAME,
    workers: int = 1,
    digest: str = DIGEST,
    limits: Limits | None = None,
    token: str | None = None,
    port: int = 0,
) -> Iterator[str]:
    """URL of the real application under uvicorn on a free port, ready."""
    reward = ServedReward(scorer or Scripted(), workers, digest)
    app = create_app({name: reward}, limits or Limits(), token)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=1)
    )
    listening = bound_socket("127.0.0.1", port)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200)
        yield url
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def wait_until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if true():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"not so within {seconds} s")


Answers = Callable[["Faulty", bytes], bytes | None]


class Faulty(BaseHTTPRequestHandler):
    """Passes requests on to a real service, unless the test's `fault` answers a /score itself."""

    behind: str
    fault: Callable[[int], Callable[[Faulty, bytes], None] | None]
    on_get: Callable[[Faulty, bytes], None] | None
    asked: list[float]

    def do_GET(self) -> None:
        on_get = type(self).on_get
        if on_get is None:
            self._pass_on(b"")
        else:
            on_get(self, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(time.monotonic())
        fault = type(self).fault(len(self.asked))
        if fault is None:
            self._pass_on(body)
        else:
            fault(self, body)

    def answer(
        self, status: int, content: bytes, length: int | None = None, **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def forwarded(self, body: bytes) -> bytes:
        """What the real service answers."""
        return self._forward(body).content

    def _forward(self, body: bytes) -> httpx.Response:
        kind = {"Content-Type": self.headers["Content-Type"]} if body else {}
        return httpx.request(
            self.command, self.behind + self.path, content=body, headers=kind, trust_env=False
        )

    def _pass_on(self, body: bytes) -> None:
        answer = self._forward(body)
        names = [name for name in PASSED_ON if name in answer.headers]
        passed = {name: answer.headers[name] for name in names}
        self.answer(answer.status_code, answer.content, **passed)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that gave up is what the test is about."""


@contextmanager
def faulty(
    behind: str,
    fault: Callable[[int], Callable[[Faulty, bytes], None] | None],
    on_get: Callable[[Faulty, bytes], None] | None = None,
) -> Iterator[tuple[str, list[float]]]:
    """URL of a server before a real service, and when its /score was asked.

    `fault` is given the number of the request (1, 2, ...): None lets it pass. `on_get` answers
    what is asked by GET.
    """
    asked: list[float] = []
    own = {
        "behind": behind,
        "fault": staticmethod(fault),
        "on_get": on_get and staticmethod(on_get),
        "asked": asked,
    }
    handler = type("Handler", (Faulty,), own)
    server = _QuietServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def client(
    *urls: str,
    deadline: float = 10.0,
    timeout: float = 5.0,
    token: str | None = None,
    concurrency: int = 8,
) -> Iterator[RemoteScorer]:
    scorer = RemoteScorer(
        Scripted(), urls, DIGEST, token, deadline=deadline, timeout=timeout, concurrency=concurrency
    )
    try:
        yield scorer
    finally:
        scorer.close()


def reasons(scores: Scores) -> list[str]:
    """Why scores are missing; fails where one is a number."""
    assert all(isinstance(one, Missing) for one in scores.values), scores.values
    return [one.reason for one in scores.values if isinstance(one, Missing)]


# Four pictures, and the scores that every sound service gives them.
BATCH = batch_of([1, 40, 90, 160])
RIGHT = list(Scripted().score(BATCH).values)
