"""Which settings of the policy objective make no sense with a policy, or with each other."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.log_probs import clip_ranges
from atelier.config.schema import RunConfig
from atelier.config.sections.algorithm import AlgorithmConfig

Rejections = Iterator[tuple[str, str]]

# A sequence's ratio is a mean, and keeps near 1: as wide a clip range was meant for single tokens.
WIDE_SEQUENCE_CLIP = 0.01

# What a flow policy cannot do, whose actions are a fixed number of transitions.
_OF_TOKENS = {
    "ratio_level": "a transition has a ratio of its own, and is replayed on its own; use token",
    "surrogate": "ratios of transitions hardly leave 1, where all surrogates are the same; use "
    "clipped",
    "loss_mean": "its images have as many transitions each, and nothing to choose; use sequence",
    "kl_correction": "the KL of a transition is exact, and no estimate to be corrected; use false",
    "mask_truncated": "an image always comes to its end; use false",
}


def objective_rejections(config: RunConfig) -> Rejections:
    """Field and reason."""
    algorithm = config.algorithm
    if config.policy.denoises:
        yield from _flow_rejections(algorithm)
    elif algorithm.mask_truncated and not may_be_truncated(config):
        yield (
            "algorithm.mask_truncated",
            "images always come to their end; it is for answers (rollout.kind introspect) and "
            "completions",
        )
    if algorithm.name == "grpo":
        yield from _delta_rejections(config)
    if algorithm.ground_truth.enabled:
        yield from _ground_truth_rejections(algorithm)


def may_be_truncated(config: RunConfig) -> bool:
    """Whether samples hold text, which may come to no end in the tokens it has."""
    family = config.policy.family
    return family == "qwen" or (family == "janus" and config.rollout.kind == "introspect")


def objective_warnings(config: RunConfig) -> Rejections:
    """Field and what is likely to be a mistake."""
    algorithm = config.algorithm
    clip = max(algorithm.clip_range or 0.0, algorithm.clip_range_high or 0.0)
    clips = algorithm.surrogate == "clipped"
    if algorithm.ratio_level == "sequence" and clips and clip >= WIDE_SEQUENCE_CLIP:
        yield (
            "algorithm.clip_range",
            f"{clip:g} clips hardly anything of a sequence's ratio, which keeps near 1; GSPO has "
            "3e-4, and 4e-4 above",
        )


def _flow_rejections(algorithm: AlgorithmConfig) -> Rejections:
    for name, reason in _OF_TOKENS.items():
        value = getattr(algorithm, name)
        if value != type(algorithm).model_fields[name].default:
            shown = str(value).lower()
            yield f"algorithm.{name}", f"{shown} is for token policies: {reason}"


def _delta_rejections(config: RunConfig) -> Rejections:
    delta = config.algorithm.clip_delta
    above = 1 + clip_ranges(config)[1]
    if delta is not None and delta <= above:
        yield (
            "algorithm.clip_delta",
            f"{delta:g} is a ratio, and would cut what the clip range up to {above:g} lets pass; "
            "use more, such as 4",
        )


def _ground_truth_rejections(algorithm: AlgorithmConfig) -> Rejections:
    for name in ("ratio_level", "surrogate"):
        value, usual = getattr(algorithm, name), type(algorithm).model_fields[name].default
        if value != usual:
            yield (
                f"algorithm.{name}",
                f"{value}: ground truth has a ratio of its own (algorithm.ground_truth.importance),"
                f" which goes with {usual}",
            )
