"""What a supervisor must know of a kind of server: whether it is ready, what it is, how to end it.

All of it is asked over HTTP, so any program that answers alike can be supervised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import httpx

from atelier.errors import ConfigError
from atelier.rewards.service.protocol import Readiness, VersionAnswer


class ServerKind(Protocol):
    """Questions to a server at `url`. NO_ANSWER is raised where it gives no answer."""

    def not_ready(self, client: httpx.Client, url: str) -> str | None:
        """What it still waits for; None when its golden sample is right.

        Raises:
            ConfigError: it can never be what it is to be.
        """
        ...

    def identities(self, client: httpx.Client, url: str) -> Mapping[str, Mapping[str, Any]]:
        """What computes: by reward, or by the judge's name."""
        ...

    def drain(self, client: httpx.Client, url: str, seconds: float) -> None:
        """Let it finish what it has begun and take nothing more."""
        ...


class RewardServiceKind:
    """A service that speaks Atelier's reward protocol (rewards/service)."""

    def not_ready(self, client: httpx.Client, url: str) -> str | None:
        answer = client.get(f"{url}/readyz")
        readiness = Readiness.model_validate_json(answer.content)
        waiting = []
        for name, reward in readiness.rewards.items():
            if reward.state == "failed":
                raise ConfigError(reward.reason or f"rewards.{name}: the service failed")
            if reward.state == "loading":
                waiting.append(f"{name} is loading" + (f": {reward.reason}" * bool(reward.reason)))
        return None if readiness.ready else "; ".join(waiting) or "not ready"

    def identities(self, client: httpx.Client, url: str) -> Mapping[str, Mapping[str, Any]]:
        answer = client.get(f"{url}/version")
        version = VersionAnswer.model_validate_json(answer.content)
        return {name: one.model_dump() for name, one in version.rewards.items()}

    def drain(self, client: httpx.Client, url: str, seconds: float) -> None:
        client.post(f"{url}/drain", params={"timeout": seconds}, timeout=seconds + 1)


NO_ANSWER = (httpx.HTTPError, ValueError)  # the latter: an answer of another shape
