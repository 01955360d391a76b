"""Which settings of an algorithm, and of the rollouts it learns from, exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.objective_rules import objective_rejections
from atelier.config.schema import RunConfig
from atelier.config.sections.algorithm import NftConfig
from atelier.config.sections.base import Section

Rejections = Iterator[tuple[str, str]]


def algorithm_rejections(config: RunConfig) -> Rejections:
    """Field and reason of every setting of the algorithm that cannot work with the others; of
    token policies, see token_rules."""
    if config.policy.denoises:
        if config.algorithm.name == "nft":
            yield from _nft_rejections(config)
        else:
            yield from _grpo_rejections(config)
    yield from objective_rejections(config)
    yield from _trim_rejections(config)
    if config.algorithm.advantage_over == "step" and config.train.resample_rounds:
        yield (
            "train.resample_rounds",
            "other prompts for groups of equal rewards, which teach something where all images of "
            "a step are compared (algorithm.advantage_over step); use 0, or prompt",
        )
    algorithm = config.algorithm
    if algorithm.keep_extremes and algorithm.keep_extremes >= config.rollout.group_size:
        yield (
            "algorithm.keep_extremes",
            f"{algorithm.keep_extremes} keeps every image of a group of "
            f"{config.rollout.group_size} (rollout.group_size); use fewer, or null",
        )


def _trim_rejections(config: RunConfig) -> Rejections:
    trim, size = config.algorithm.advantage_trim, config.rollout.group_size
    left = size - int(trim * size)
    if left < 2 <= size:
        yield (
            "algorithm.advantage_trim",
            f"{trim:g} leaves {left} of {size} images (rollout.group_size) to take mean and std "
            "of; leave 2 at least",
        )


def _grpo_rejections(config: RunConfig) -> Rejections:
    algorithm, rollout = config.algorithm, config.rollout
    if rollout.dynamics == "ode":
        yield (
            "rollout.dynamics",
            "ode has no probabilities for algorithm.name grpo to compare; use cps or "
            "flow_sde, or algorithm.name nft",
        )
    elif rollout.solver != "euler":
        yield (
            "rollout.solver",
            f"{rollout.solver} takes the steps of rollout.dynamics ode; behind a window "
            "rollout.tail uses it",
        )
    if algorithm.beta > 0 and algorithm.kl == "k3":
        yield (
            "algorithm.kl",
            "k3 is for token policies; here are latent_mean, velocity and scaled_velocity",
        )
    if algorithm.kl_placement == "reward" and algorithm.advantage_from != "total":
        yield (
            "algorithm.kl_placement",
            "the KL is taken off the sum of the rewards; use algorithm.advantage_from total",
        )
    if rollout.level_share != _default(rollout, "level_share"):
        yield "rollout.level_share", "is for finished images (rollout.dynamics ode)"
    if algorithm.nft != NftConfig():
        yield "algorithm.nft", "is for algorithm.name nft, and does nothing with grpo"


def _nft_rejections(config: RunConfig) -> Rejections:
    algorithm, rollout = config.algorithm, config.rollout
    if rollout.dynamics != "ode":
        yield (
            "rollout.dynamics",
            f"{rollout.dynamics}: algorithm.name nft learns from images of a deterministic "
            "rollout; use ode",
        )
    for name in ("window", "noise_level", "log_prob", "tail"):
        if getattr(rollout, name) != _default(rollout, name):
            yield f"rollout.{name}", "is for stochastic steps, which algorithm.name nft has not"
    if rollout.old_log_prob == "recompute":
        yield "rollout.old_log_prob", "algorithm.name nft has no log-probs to recompute"
    if rollout.shared_start:
        yield (
            "rollout.shared_start",
            "without stochastic steps all images of a group would be the same one",
        )
    for name in ("clip_range", "clip_range_high", "clip_delta"):
        if getattr(algorithm, name) is not None:
            yield f"algorithm.{name}", "algorithm.name nft has no ratio to clip"
    if algorithm.beta > 0 and algorithm.kl != "velocity":
        yield "algorithm.kl", f"{algorithm.kl}: algorithm.name nft has velocity"
    if algorithm.kl_placement == "reward":
        yield "algorithm.kl_placement", "algorithm.name nft adds the KL to the loss; use loss"


def _default(section: Section, name: str) -> object:
    return type(section).model_fields[name].default
