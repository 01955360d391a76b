"""Steps, updates, optimizer and checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import (
    Decay,
    Factor,
    Fraction,
    NonNegativeInt,
    PositiveInt,
    Section,
)
from atelier.config.sections.learning_rate import ScheduleConfig
from atelier.config.sections.sft import SftConfig


class EmaConfig(Section):
    """Moving average of the trained parameters."""

    enabled: bool = Field(True, description="Keep a moving average; evaluation and export use it.")
    decay: Fraction = Field(0.9, description="Largest decay; (1+n)/(10+n) before it is reached.")
    every: PositiveInt = Field(1, description="Optimizer updates between two averages.")


class TrainConfig(Section):
    """The loop and the optimizer."""

    seed: NonNegativeInt = Field(1, description="Seed of every draw of the run.")
    steps: PositiveInt = Field(60, description="Rollout steps.")
    prompts_per_step: PositiveInt = Field(12, description="Prompts (groups) in a step.")
    updates_per_step: PositiveInt = Field(2, description="Optimizer updates in a step.")
    inner_epochs: PositiveInt = Field(
        1, description="How often a step's images are trained on, each time in as many updates."
    )
    resample_rounds: NonNegativeInt = Field(
        0,
        description="How often a step draws other prompts for groups whose rewards are all equal.",
    )
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        2e-5, description="AdamW learning rate, the highest of its schedule."
    )
    schedule: ScheduleConfig = ScheduleConfig()
    weight_decay: Factor = Field(1e-4, description="AdamW weight decay.")
    adam_betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="AdamW betas.")
    adam_epsilon: Annotated[float, Field(ge=1e-30, le=1)] = Field(
        1e-8, description="AdamW epsilon."
    )
    max_grad_norm: Annotated[float, Field(ge=1e-6, le=1e9)] = Field(
        1.0, description="Gradient norm clip."
    )
    ema: EmaConfig = EmaConfig()
    sft: SftConfig = SftConfig()
    one_step_off: bool = Field(
        False,
        description="Sample a step's images before the update of the step before, so that they are "
        "scored during it; the policy that learns from them is a step ahead.",
    )
    in_flight: Literal["drain", "store"] = Field(
        "drain",
        description="One step off, what a checkpoint does with images sampled ahead: none are "
        "before it, or they are saved with it, scores and all.",
    )
    checkpoint_every: PositiveInt = Field(10, description="Steps between two checkpoints.")
    keep_checkpoints: PositiveInt = Field(2, description="Newest checkpoints kept.")
    evaluate_every: NonNegativeInt = Field(
        20, description="Steps between two periodic evaluations; 0: none."
    )
    replay_gate: Fraction = Field(
        0.1,
        description="Largest mean gap between rollout and replay before the first update: of the "
        "ratio to 1, in clip ranges; nft: of velocities, relative, in tenths.",
    )

    @property
    def updates_a_step(self) -> int:
        """Optimizer updates of a step, all epochs."""
        return self.updates_per_step * self.inner_epochs

    @property
    def updates(self) -> int:
        """Optimizer updates of the whole run, at most."""
        return self.steps * self.updates_a_step
