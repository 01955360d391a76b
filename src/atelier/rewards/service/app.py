"""The application: six endpoints over the rewards of one configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from atelier import __version__
from atelier.errors import AtelierError
from atelier.legible import legible
from atelier.rewards.service.bodies import BODIES, Received, document_bodies, problems_of, read_body
from atelier.rewards.service.gate import Bounds, Door, Gate, Refused
from atelier.rewards.service.metrics import Metrics
from atelier.rewards.service.pictures import PictureError, PixelBounds
from atelier.rewards.service.protocol import (
    QUEUE_HEADER,
    DrainAnswer,
    ErrorAnswer,
    Readiness,
    RewardAnswer,
    ScoreAnswer,
    VersionAnswer,
)
from atelier.rewards.service.served import ServedReward

logger = logging.getLogger(__name__)

_QUEUE_LENGTH = {
    "description": "Requests that wait or are scored as this answer leaves, its own included.",
    "schema": {"type": "integer", "minimum": 0},
}


@dataclass(frozen=True)
class Limits:
    """Everything that is bounded. `seconds` is how long one batch may take, waiting included."""

    bounds: Bounds = field(default_factory=Bounds)
    pixels: PixelBounds = field(default_factory=PixelBounds)
    items: int = 256
    seconds: float = 600.0


def create_app(
    rewards: Mapping[str, ServedReward], limits: Limits, token: str | None = None
) -> FastAPI:
    """The service. Golden samples are scored from its start on.

    Args:
        rewards: by the name that requests use.
        token: what a client must bear; None asks for nothing.
    """
    door = Door()
    metrics = Metrics(lambda: door.inside)
    app = FastAPI(
        title="Atelier reward service",
        version=__version__,
        lifespan=lambda _: _proving(rewards, door),
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        responses={"4XX": {"model": ErrorAnswer}, "5XX": {"model": ErrorAnswer}},
    )
    app.add_middleware(
        Gate,
        bounds=limits.bounds,
        door=door,
        metrics=metrics,
        token=token,
    )
    _answer_errors_alike(app, metrics)
    _Endpoints(rewards, limits, door, metrics).add_to(app)
    document_bodies(app.openapi())
    return app


@dataclass(frozen=True)
class _Endpoints:
    """What the service answers."""

    rewards: Mapping[str, ServedReward]
    limits: Limits
    door: Door
    metrics: Metrics

    def add_to(self, app: FastAPI) -> None:
        """Each under its path."""
        waiting = {"headers": {QUEUE_HEADER: _QUEUE_LENGTH}}
        app.post("/score", response_model=ScoreAnswer, responses={200: waiting})(self.score)
        app.get("/healthz")(self.healthz)
        app.get("/readyz", responses={503: {"model": Readiness}})(self.readyz)
        app.get("/version")(self.version)
        app.get("/metrics", response_class=PlainTextResponse)(self.metrics_page)
        app.post("/drain")(self.drain)

    async def score(self, request: Request) -> Response:
        """Score a batch by one reward or several."""
        received = read_body(request.headers.get("Content-Type", ""), await request.body())
        names = self._asked(received)
        self._require_few(received)
        answers = await asyncio.gather(*(self._score(name, received) for name in names))
        answer = ScoreAnswer(
            request_id=received.head.request_id, rewards=dict(zip(names, answers, strict=True))
        )
        # As it is: the framework would check and convert every result once more.
        return Response(answer.model_dump_json(), media_type="application/json")

    async def healthz(self) -> dict[str, str]:
        """200 while the process answers."""
        return {"status": "ok"}

    async def readyz(self, response: Response) -> Readiness:
        """200 when every golden sample is scored within its tolerance."""
        ready = self.door.ready and not self.door.draining
        response.status_code = 200 if ready else 503
        states = {name: served.state for name, served in self.rewards.items()}
        return Readiness(ready=ready, draining=self.door.draining, rewards=states)

    async def version(self, response: Response) -> VersionAnswer:
        """What scores, by reward; the header Accept-Post lists what /score takes."""
        response.headers["Accept-Post"] = ", ".join(BODIES)
        served = {name: one.identity for name, one in self.rewards.items()}
        return VersionAnswer(service=__version__, rewards=served)

    async def metrics_page(self) -> Response:
        """For Prometheus."""
        return Response(self.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    async def drain(self, timeout: Annotated[float, Query(ge=0, le=3600)] = 60.0) -> DrainAnswer:
        """Take nothing more, and answer when what runs is done or after `timeout` seconds."""
        self.door.draining = True
        return DrainAnswer(running=await self.door.wait_empty(timeout))

    def _asked(self, received: Received) -> list[str]:
        """Names of rewards, each once; all where none is named."""
        asked = received.head.rewards
        names = list(self.rewards) if asked is None else list(dict.fromkeys(asked))
        if unknown := [name for name in names if name not in self.rewards]:
            text = f"this service has {', '.join(self.rewards)} and not {', '.join(unknown)}"
            raise Refused(422, "unknown_reward", legible(text))
        return names

    def _require_few(self, received: Received) -> None:
        if received.count > self.limits.items:
            text = f"{received.count} items, at most {self.limits.items} are taken"
            raise Refused(413, "too_many_items", text)

    async def _score(self, name: str, received: Received) -> RewardAnswer:
        timeout = min(self.limits.seconds, received.head.timeout or self.limits.seconds)
        with self.metrics.latency.labels(name).time():
            answer = await self.rewards[name].score(received, self.limits.pixels, timeout)
        self.metrics.count(name, answer)
        return answer


@asynccontextmanager
async def _proving(rewards: Mapping[str, ServedReward], door: Door) -> AsyncIterator[None]:
    """Score the golden samples beside serving; the door opens when all are right."""

    async def prove() -> None:
        await asyncio.gather(*(served.prove() for served in rewards.values()))
        door.ready = all(served.state.state == "ready" for served in rewards.values())
        if door.ready:
            logger.info("ready: the golden samples of %s are right", ", ".join(rewards))
        else:
            lacking = [name for name, one in rewards.items() if one.state.state != "ready"]
            logger.error("never ready: %s; /readyz says why", ", ".join(lacking))

    task = asyncio.create_task(prove())
    try:
        yield
    finally:
        task.cancel()
        for served in rewards.values():
            served.close()


def _answer_errors_alike(app: FastAPI, metrics: Metrics) -> None:
    """Every refusal has the same typed body, and none repeats what was sent."""

    def answer(refused: Refused) -> JSONResponse:
        metrics.refused(refused.error)
        return refused.response()

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return answer(error)

    @app.exception_handler(PictureError)
    async def picture(_: Request, error: PictureError) -> JSONResponse:
        status = 413 if error.kind == "too_many_pixels" else 422
        return answer(Refused(status, error.kind, str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return answer(Refused(422, "invalid_request", problems_of(error.errors(), "request")))

    @app.exception_handler(AtelierError)
    async def unusable(_: Request, error: AtelierError) -> JSONResponse:
        return answer(Refused(503, "not_ready", str(error), retryable=True))

    @app.exception_handler(Exception)
    async def crashed(_: Request, error: Exception) -> JSONResponse:
        text = f"{type(error).__name__}; the service's log says more"
        return answer(Refused(500, "internal", text, retryable=True))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return answer(Refused(error.status_code, "http", str(error.detail)))
