"""What /metrics shows, in a registry of its own."""

from __future__ import annotations

from collections import Counter as Counted
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from atelier.rewards.service.gpu_memory import GpuMemory
from atelier.rewards.service.protocol import Error, RewardAnswer

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of one service.

    Args:
        queue_length: reads the number of requests that were taken and are not answered.
    """

    def __init__(self, queue_length: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "atelier_reward_requests",
            "Requests to /score by answered status.",
            ["status"],
            registry=self._registry,
        )
        self.images = Counter(
            "atelier_reward_images", "Images with a score.", ["reward"], registry=self._registry
        )
        self.errors = Counter(
            "atelier_reward_errors",
            "Images without a score, and requests refused (reward is empty then).",
            ["reward", "type"],
            registry=self._registry,
        )
        self.shed = Counter(
            "atelier_reward_requests_shed",
            "Requests refused because as many as are allowed were waiting.",
            registry=self._registry,
        )
        self.latency = Histogram(
            "atelier_reward_seconds",
            "Seconds from the request to a reward's scores of a batch.",
            ["reward"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        Gauge(
            "atelier_reward_queue_length",
            "Requests waiting or being scored.",
            registry=self._registry,
        ).set_function(queue_length)
        ProcessCollector(registry=self._registry)  # resident memory, CPU seconds, open files
        self._registry.register(GpuMemory())

    def count(self, reward: str, answer: RewardAnswer) -> None:
        """Take up one reward's results of a request."""
        found = Counted(result.error and result.error.type for result in answer.results)
        self.images.labels(reward).inc(found.pop(None, 0))
        for kind, count in found.items():
            self.errors.labels(reward, kind).inc(count)

    def refused(self, error: Error) -> None:
        """Take up a request that no reward has seen."""
        self.errors.labels("", error.type).inc()

    def page(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)
