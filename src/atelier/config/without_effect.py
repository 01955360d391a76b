"""Settings that do nothing beside the others. Not an error, since a recipe may have set them for
another choice; but whoever set one meant something by it, so the plan warns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce

from pydantic import BaseModel

from atelier.config.schema import RunConfig


@dataclass(frozen=True)
class Rule:
    """Keys that say something only where `matters`."""

    keys: tuple[str, ...]
    matters: Callable[[RunConfig], bool]
    needs: str


RULES = (
    Rule(
        ("policy.lora.rank", "policy.lora.alpha", "policy.lora.target_modules"),
        lambda config: config.policy.trainable == "lora",
        "policy.trainable: lora",
    ),
    Rule(
        ("rollout.shift",),
        lambda config: config.rollout.schedule == "linear_shift",
        "rollout.schedule: linear_shift",
    ),
    Rule(
        ("rollout.window.size", "rollout.window.range"),
        lambda config: config.rollout.window.strategy != "all",
        "another rollout.window.strategy than all",
    ),
    Rule(
        (
            "rollout.window.stride",
            "rollout.window.roll_back",
            "rollout.window.steps_per_window",
        ),
        lambda config: config.rollout.window.moves,
        "a rollout.window.strategy that moves: progressive, decay or exp_decay",
    ),
    Rule(
        ("rollout.window.fewest_steps_per_window",),
        lambda config: config.rollout.window.strategy == "decay",
        "rollout.window.strategy: decay",
    ),
    Rule(
        ("data.scene_pairs", "data.scene_task"),
        lambda config: config.data.source == "scenes",
        "data.source: scenes",
    ),
    Rule(
        ("algorithm.kl", "algorithm.kl_placement"),
        lambda config: config.algorithm.beta > 0,
        "algorithm.beta above 0",
    ),
    Rule(
        ("train.in_flight",), lambda config: config.train.one_step_off, "train.one_step_off: true"
    ),
    Rule(
        ("train.ema.decay", "train.ema.every"),
        lambda config: config.train.ema.enabled,
        "train.ema.enabled: true",
    ),
    Rule(
        ("launch.zero_stage",),
        lambda config: config.launch.engine == "deepspeed",
        "launch.engine: deepspeed",
    ),
)


def without_effect(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and reason of every setting that is not the default and does nothing here."""
    for rule in RULES:
        if not rule.matters(config):
            for key in rule.keys:
                if _is_set(config, key):
                    yield key, f"does nothing here: it needs {rule.needs}"


def _is_set(config: RunConfig, key: str) -> bool:
    """Whether it has another value than the default. A resolved file names every key, so that a
    key is there says nothing."""
    *path, name = key.split(".")
    section: BaseModel = reduce(getattr, path, config)
    field = type(section).model_fields[name]
    return bool(getattr(section, name) != field.get_default(call_default_factory=True))
