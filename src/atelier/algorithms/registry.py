"""Which algorithm a run asks for."""

from __future__ import annotations

from atelier.algorithms.base import Algorithm
from atelier.algorithms.grpo import Grpo
from atelier.algorithms.nft import Nft
from atelier.config.schema import RunConfig


def make_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm of algorithm.name, with its settings."""
    return Nft.of(config) if config.algorithm.name == "nft" else Grpo.of(config)
