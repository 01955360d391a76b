"""How images are drawn to learn from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import Fraction, Guidance, NonNegativeInt, PositiveInt, Section
from atelier.config.sections.completion import CompletionConfig
from atelier.config.sections.qwen import ConditioningConfig, EnvironmentConfig
from atelier.config.sections.sampler import SamplerConfig
from atelier.config.sections.tokens import EditingRolloutConfig, IntrospectionConfig, TokensConfig

WindowStrategy = Literal["all", "fast", "random", "fraction", "progressive", "decay", "exp_decay"]


class WindowConfig(Section):
    """Which denoising steps are stochastic and trained, as in Flow-GRPO-Fast and MixGRPO."""

    strategy: WindowStrategy = Field(
        "fast",
        description="all: every step but a deterministic last one. fast, random: a window drawn "
        "each training step. fraction: single steps drawn each training step (MR-GRPO). "
        "progressive, decay, exp_decay: a window that moves on (MixGRPO), evenly or faster and "
        "faster.",
    )
    size: PositiveInt = Field(2, description="Steps in the window (not for all and fraction).")
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.6,
        description="Share of the denoising steps that is drawn, rounded down, at least one "
        "(fraction).",
    )
    include_last: bool = Field(
        False,
        description="Whether the last step may be stochastic, too (all, fraction; not with cps, "
        "whose last step has no noise). It leaves noise in the image.",
    )
    range: tuple[NonNegativeInt, PositiveInt] | None = Field(
        None,
        description="[low, high): the window lies inside. Default: fast: the first half of the "
        "steps; the others: all but the last two.",
    )
    scope: Literal["step", "group", "rank"] = Field(
        "step", description="Who shares one draw of the window (fast, random)."
    )
    stride: NonNegativeInt | None = Field(
        None,
        description="Steps by which a moving window moves on; default: its size, so that windows "
        "do not overlap; 0 freezes it.",
    )
    steps_per_window: PositiveInt = Field(
        25, description="Training steps until a moving window moves on (decay: at the beginning)."
    )
    fewest_steps_per_window: PositiveInt = Field(
        1, description="Training steps until it moves on at the end (decay)."
    )
    roll_back: bool = Field(
        True, description="Whether a window that reached the end begins anew, or stays there."
    )

    @property
    def moves(self) -> bool:
        """Whether its place follows from the training step, and not from a draw."""
        return self.strategy in ("progressive", "decay", "exp_decay")

    @property
    def covers_any_step(self) -> bool:
        """Whether its steps are not those of a window of a size, inside a range."""
        return self.strategy in ("all", "fraction")

    def bounds(self, num_steps: int) -> tuple[int, int]:
        """[low, high) of the step indices the window may cover, of `num_steps` denoising steps."""
        if self.covers_any_step:
            return 0, num_steps if self.include_last else num_steps - 1
        if self.range is not None:
            return self.range
        return 0, num_steps // 2 if self.strategy == "fast" else num_steps - 2

    def longest(self, num_steps: int) -> int:
        """Steps it covers of `num_steps` denoising steps; a moving one has fewer at its end."""
        if self.strategy == "fraction":
            return max(1, int(num_steps * self.fraction))
        low, high = self.bounds(num_steps)
        return high - low if self.strategy == "all" else self.size


class RolloutConfig(Section):
    """How training images are sampled."""

    group_size: PositiveInt = Field(16, description="Images per prompt.")
    kind: Literal["draw", "introspect", "edit"] = Field(
        "draw",
        description="What one sample is: an image; an image, what the policy thinks of it, and "
        "another one (rollout.introspection); a source image, edited.",
    )
    tokens: TokensConfig = TokensConfig()
    introspection: IntrospectionConfig = IntrospectionConfig()
    editing: EditingRolloutConfig = EditingRolloutConfig()
    completion: CompletionConfig = CompletionConfig()
    sampler: SamplerConfig = SamplerConfig()
    conditioning: ConditioningConfig = ConditioningConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    num_inference_steps: PositiveInt = Field(8, description="Denoising steps.")
    guidance_scale: Guidance = Field(
        1.0, description="Classifier-free guidance; 1 samples without it."
    )
    dynamics: Literal["flow_sde", "dance_sde", "wan_sde", "cps", "ode"] = Field(
        "cps",
        description="Stochastic transition inside the window: that of Flow-GRPO, of DanceGRPO, of "
        "flow_grpo for Wan, or coefficients-preserving sampling; ode: none at all, for algorithms "
        "that learn from finished images.",
    )
    noise_level: Annotated[float, Field(ge=0, le=10)] = Field(
        0.4, description="Noise of a stochastic step: a of flow_sde and of cps (at most 1), g."
    )
    log_prob: Literal["gaussian_mean", "cps_raw", "ratio_norm"] | None = Field(
        None,
        description="Log-probability of a transition. Default: cps_raw for cps, else "
        "gaussian_mean; ratio_norm is GRPO-Guard.",
    )
    window: WindowConfig = WindowConfig()
    schedule: Literal["scheduler", "linear_shift", "resolution_shift"] = Field(
        "scheduler",
        description="Noise levels: of the pipeline's scheduler; evenly spaced ones shifted; the "
        "same, shifted the further the larger images are (FLUX).",
    )
    shift: Annotated[float, Field(ge=0.1, le=100)] = Field(
        3.0, description="Shift of linear_shift (5 for video)."
    )
    lowest_level: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Last level above 0 that those of resolution_shift are stretched to "
        "(Qwen-Image: 0.02); default: they are not.",
    )
    tail: Fraction | None = Field(
        None,
        description="Share of the steps behind the window that is left, run by DPM-Solver++ "
        "(MixGRPO-Flash); default: all, by Euler.",
    )
    solver: Literal["euler", "dpm_solver"] = Field(
        "euler", description="What takes the steps of a rollout without stochastic ones (ode)."
    )
    level_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.99,
        description="Share of the noise levels of a rollout that each of its images is trained "
        "at, drawn an image (ode).",
    )
    shared_start: bool = Field(
        False, description="Whether the images of a group start from the same noise."
    )
    micro_batch_size: PositiveInt = Field(
        16, description="Images sampled and replayed together; never depends on world size."
    )
    old_log_prob: Literal["rollout", "recompute"] = Field(
        "rollout", description="Old log-probs as sampled, or recomputed in the training graph."
    )

    @property
    def trained_levels(self) -> int:
        """Noise levels each image is trained at (ode)."""
        return max(1, int(self.num_inference_steps * self.level_share))
