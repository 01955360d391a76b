"""A whole run's configuration, put together of its sections; the reference page is generated of it.

Values come from four places, later ones winning: the defaults here, the recipe (and those it
inherits), params.yaml, and `--set dotted.key=value`. A key that is not here is refused with a
suggestion (see resolve.py). The keys are in sections/; what excludes each other is below and in
suite_conflicts.py, and what arithmetic forbids in plan.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from atelier.config.judged import judge_conflicts
from atelier.config.secret_names import secret_words
from atelier.config.sections.algorithm import AlgorithmConfig
from atelier.config.sections.base import Section
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.export import ExportConfig
from atelier.config.sections.judge import JudgeConfig, JudgeName
from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.rewards import RewardsConfig
from atelier.config.sections.rollout import RolloutConfig
from atelier.config.sections.sampler import SamplerConfig
from atelier.config.sections.servers import SECRET_PROBLEM
from atelier.config.sections.tracking import TrackingConfig
from atelier.config.sections.train import TrainConfig
from atelier.config.suite_conflicts import data_conflicts, suite_conflicts


class RunConfig(Section):
    """A whole run."""

    recipe: str | None = Field(None, description="Recipe the values come from, for the record.")
    data: DataConfig = DataConfig()
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    rewards: RewardsConfig = RewardsConfig()
    judges: dict[JudgeName, JudgeConfig] = Field(
        default={}, description="Judges by names of yours, which rewards refer to."
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    export: ExportConfig = ExportConfig()
    launch: LaunchConfig = LaunchConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def sampler(self) -> SamplerConfig | None:
        """The servers that draw what is trained on; None where the policy draws itself."""
        writes = self.policy.family == "qwen"
        is_served = writes and self.rollout.completion.backend == "vllm"
        return self.rollout.sampler if is_served else None

    @property
    def token_variables(self) -> set[str]:
        """Variables of the environment that hold tokens of remote servers."""
        named = [self.rollout.sampler.token_env, *(one.token_env for one in self.judges.values())]
        return {one for one in named if one is not None}

    @model_validator(mode="after")
    def _fields_that_exclude_each_other(self) -> RunConfig:
        conflicts = list(self._conflicts())
        if conflicts:
            text = "; ".join(f"{key}: {problem}" for key, problem in conflicts)
            raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": conflicts})
        return self

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """Key and problem of every field that does not fit the others."""
        yield from self.rewards.conflicts()
        for name, judge in self.judges.items():
            yield from ((f"judges.{name}.{key}", text) for key, text in judge.conflicts())
        yield from judge_conflicts(self.rewards, self.judges)
        if self.data.source not in ("scenes", "mixture") and self.data.path is None:
            yield "data.path", f"is required when data.source is {self.data.source}"
        yield from data_conflicts(self.data)
        yield from ((f"train.sft.{key}", text) for key, text in self.train.sft.conflicts())
        yield from suite_conflicts(self.evaluation, self.judges)
        sampler = self.rollout.sampler
        yield from ((f"rollout.sampler.{key}", text) for key, text in sampler.conflicts())
        if self.rollout.dynamics == "cps" and self.rollout.noise_level > 1:
            yield "rollout.noise_level", "is at most 1 with rollout.dynamics: cps"
        yield from (
            (f"rollout.conditioning.{key}", text)
            for key, text in self.rollout.conditioning.conflicts()
        )
        if self.rollout.environment.preset == "lightning" and self.rollout.guidance_scale > 1:
            yield (
                "rollout.guidance_scale",
                "is 1 with rollout.environment.preset: lightning, whose adapter was distilled "
                "with guidance",
            )
        if not self.export.formats or len({*self.export.formats}) < len(self.export.formats):
            yield "export.formats", "names each format to write once, and at least one"
        for name in secret_words(self.launch.launcher, self.token_variables):
            yield (
                "launch.launcher",
                f"{name} {SECRET_PROBLEM}: let the launcher pass the environment on, as srun does, "
                "and set it there",
            )
        if self.launch.node_rank >= self.launch.nodes:
            yield (
                "launch.node_rank",
                f"{self.launch.node_rank} is none of launch.nodes {self.launch.nodes}: they are "
                "counted from 0; set launch.nodes to how many there are, or a smaller rank",
            )
        if "adapter" in self.export.formats and self.policy.trainable != "lora":
            yield "export.formats", "adapter needs policy.trainable: lora"
