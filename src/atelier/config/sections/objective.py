"""The policy objective: what a ratio is of, what it does to the loss, and what the loss is a mean
of."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from atelier.config.sections.base import Section, Steepness

RatioLevel = Literal["token", "sequence"]
Surrogate = Literal["clipped", "cispo", "sapo", "vespo"]
LossMean = Literal["sequence", "micro_batch", "token", "constant", "sum"]


class SapoConfig(Section):
    """Surrogate sapo: how steeply the gate of a ratio falls on either side of 1."""

    temperature_positive: Steepness = Field(1.0, description="Of tokens with an advantage above 0.")
    temperature_negative: Steepness = Field(1.05, description="Of the others.")
