"""How the learning rate moves over a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import NonNegativeInt, Section

Rate = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class ScheduleConfig(Section):
    """train.learning_rate over the optimizer updates of a run."""

    kind: Literal["constant", "constant_with_warmup", "two_slopes"] = Field(
        "constant",
        description="constant_with_warmup: from 0 evenly up to train.learning_rate, where it "
        "stays. two_slopes: from 0 up to train.learning_rate, down to convert_rate, and from there "
        "down to last_rate at the last update, all evenly.",
    )
    warm_up_updates: NonNegativeInt = Field(0, description="Updates from 0 to the full rate.")
    convert_updates: NonNegativeInt = Field(0, description="Updates until convert_rate.")
    convert_rate: Rate = Field(0.0, description="Learning rate where the slope changes.")
    last_rate: Rate = Field(0.0, description="Learning rate behind the last update.")

    def conflicts(self, updates: int) -> Iterator[tuple[str, str]]:
        """Key, below this section, and problem of what cannot be in a run of so many updates."""
        if self.kind == "constant_with_warmup" and self.warm_up_updates >= updates:
            yield (
                "warm_up_updates",
                f"{self.warm_up_updates} is not before the last of the run's {updates} updates: "
                "the rate would never be the full one",
            )
        if self.kind != "two_slopes":
            return
        if not self.warm_up_updates <= self.convert_updates:
            yield "convert_updates", f"is not before warm_up_updates {self.warm_up_updates}"
        if self.convert_updates >= updates:
            yield (
                "convert_updates",
                f"{self.convert_updates} is not before the last of the run's {updates} updates: "
                "the rate would never fall to last_rate",
            )


def learning_rate(rate: float, schedule: ScheduleConfig, update: int, updates: int) -> float:
    """The learning rate of one optimizer update, the first is 0, of a run of `updates`.

    Updates are steps of the optimizer, however many micro-batches each adds up.
    """
    if schedule.kind == "constant":
        return rate
    warm, turn = schedule.warm_up_updates, schedule.convert_updates
    if update < warm:
        return rate * update / warm
    if schedule.kind == "constant_with_warmup":
        return rate
    if update < turn:
        return rate + (schedule.convert_rate - rate) * (update - warm) / (turn - warm)
    share = min(1.0, (update - turn) / max(updates - turn, 1))
    return schedule.convert_rate + (schedule.last_rate - schedule.convert_rate) * share
