"""What a plan warns of: keys whose values work and are likely not meant.

Each concern warns where its rules are; what is here belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.access_tokens import access_token_warnings
from atelier.config.completion_rules import completion_warnings
from atelier.config.facts.known_janus import IMAGE_TOKENS
from atelier.config.facts.read import Facts, source
from atelier.config.facts.sd3 import SD3Facts
from atelier.config.gpu_seen import gpu_warnings
from atelier.config.judged import judge_warnings
from atelier.config.memory.prompts import prompt_warnings
from atelier.config.nodes_token import nodes_token_warnings
from atelier.config.objective_rules import objective_warnings
from atelier.config.paid_judges import paid_judge_warnings
from atelier.config.placement import placement_warnings
from atelier.config.policy_rules import policy_warnings
from atelier.config.schema import RunConfig
from atelier.config.sections.launch import LOOPBACK
from atelier.config.sft_rules import sft_warnings
from atelier.config.space import space_warnings
from atelier.config.suite_rules import suite_warnings
from atelier.config.token_rules import token_warnings
from atelier.config.without_effect import without_effect

# Below this, results in float32 depend on the micro-batch in the last bits, and OCR and JPEG
# rewards are steps: one flipped pixel can change a score. In 16 bits none is large enough.
SMALLEST_STEADY_MICRO_BATCH = 8

SMALLEST_PUBLISHED_GROUP = 7  # FocusDiff's

# Ratios of ratio_norm are a few 1e-5 from 1: as wide a clip range was meant for another log_prob.
WIDE_GUARD_CLIP = 1e-3

Warnings = Iterator[tuple[str, str]]
"""Key and text."""


def plan_warnings(config: RunConfig, facts: Facts | None) -> Warnings:
    """Of a plan that works.

    Args:
        facts: sizes of the model; None where they are not known.
    """
    yield from _batch_warnings(config)
    yield from _schedule_warnings(config)
    yield from without_effect(config)
    yield from suite_warnings(config)
    yield from judge_warnings(config.rewards)
    yield from access_token_warnings(config)
    yield from nodes_token_warnings(config)
    yield from paid_judge_warnings(config)
    yield from gpu_warnings(config)
    yield from placement_warnings(config)
    yield from objective_warnings(config)
    yield from completion_warnings(config)
    yield from token_warnings(config)
    yield from sft_warnings(config)
    yield from policy_warnings(config)
    yield from _clip_warnings(config)
    yield from _launch_warnings(config)
    yield from _model_warnings(config, facts)


def _batch_warnings(config: RunConfig) -> Warnings:
    rollout = config.rollout
    is_steady = rollout.micro_batch_size >= SMALLEST_STEADY_MICRO_BATCH
    if config.policy.dtype == "float32" and not is_steady:
        yield (
            "rollout.micro_batch_size",
            f"below {SMALLEST_STEADY_MICRO_BATCH} the last bits depend on it, "
            "and rewards that are steps can flip",
        )
    if rollout.group_size < SMALLEST_PUBLISHED_GROUP:
        yield (
            "rollout.group_size",
            f"advantages of small groups are noisy; published runs have {SMALLEST_PUBLISHED_GROUP} "
            "to 24",
        )


def _schedule_warnings(config: RunConfig) -> Warnings:
    train = config.train
    if train.checkpoint_every > train.steps:
        yield "train.checkpoint_every", f"no checkpoint before the last of {train.steps} steps"
    if train.evaluate_every > train.steps:
        yield "train.evaluate_every", f"no periodic evaluation in {train.steps} steps"


def _clip_warnings(config: RunConfig) -> Warnings:
    clip = config.algorithm.clip_range
    if config.rollout.log_prob == "ratio_norm" and clip is not None and clip >= WIDE_GUARD_CLIP:
        yield (
            "algorithm.clip_range",
            f"{clip:g} clips hardly anything of ratio_norm, whose ratios are narrow; null is its "
            "usual 2e-6",
        )


def _launch_warnings(config: RunConfig) -> Warnings:
    launch = config.launch
    if launch.threads < launch.processes:
        yield (
            "launch.threads",
            f"{launch.threads} for {launch.processes} processes: one each is used",
        )
    if launch.nodes > 1 and launch.master_address == LOOPBACK:
        yield (
            "launch.master_address",
            f"{LOOPBACK}: only nodes on this very machine can meet there",
        )


def _model_warnings(config: RunConfig, facts: Facts | None) -> Warnings:
    if facts is None:
        yield "policy.path", _unknown(config)
        return
    if isinstance(facts, SD3Facts):
        yield from prompt_warnings(config, facts)
    yield from space_warnings(config, facts)


def _unknown(config: RunConfig) -> str:
    name = source(config.policy)
    text = f"{name} is no local directory: taken for a hub id, memory unknown"
    if config.policy.family == "janus":
        text += f", and {IMAGE_TOKENS} tokens an image assumed, as of every published Janus"
    return text
