"""Rewards of edits: what was done, and what else counts only as far as it was."""

from __future__ import annotations

from typing import Protocol

from atelier.config.sections.rewards import Gate


class FollowedAndKept(Protocol):
    """Weights of a section of the configuration."""

    @property
    def following_weight(self) -> float: ...
    @property
    def preserving_weight(self) -> float: ...
    @property
    def gate(self) -> Gate: ...


def gated(value: float, following: float, gate: Gate) -> float:
    """What a value in [0, 1] counts as, beside how far the instruction was followed, in [0, 1].

    A copy of the source keeps all and is as good a picture, so both are worth something only
    behind a gate.
    """
    return {"none": value, "product": value * following, "min": min(value, following)}[gate]


def followed_and_kept(config: FollowedAndKept, following: float, preserving: float) -> float:
    """The weighted sum of both, each in [0, 1]."""
    kept = gated(preserving, following, config.gate)
    return config.following_weight * following + config.preserving_weight * kept
