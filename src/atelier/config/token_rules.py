"""Which settings of token policies, and of what a sample of theirs is, exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.completion_rules import completion_rejections
from atelier.config.custom_rewards import says_range
from atelier.config.prompt_files import EDIT_SOURCES, PAIR_SOURCES
from atelier.config.schema import RunConfig
from atelier.config.sections.policy_parts import holds_weights_alone
from atelier.config.suite_data import has_edits, has_pairs

Rejections = Iterator[tuple[str, str]]


def token_rejections(config: RunConfig) -> Rejections:
    """Field and reason of every setting that cannot work with policy.family."""
    yield from _schedule_rejections(config)
    yield from _data_rejections(config)
    if config.policy.family != "janus":
        yield from _rejections_of_janus_alone(config)
    if config.policy.denoises:
        return
    yield from _algorithm_rejections(config)
    if config.policy.family == "qwen":
        yield from completion_rejections(config)
        return
    yield from _model_rejections(config)
    if config.rollout.kind == "introspect":
        yield from _introspection_rejections(config)
    yield from _ground_truth_rejections(config)


def _rejections_of_janus_alone(config: RunConfig) -> Rejections:
    kind = config.rollout.kind
    if kind == "introspect":
        yield "rollout.kind", "introspect is for policy.family janus"
    elif kind == "edit" and config.policy.family == "sd3":
        yield "rollout.kind", "edit is for policy.family janus, qwen and deepgen"
    if config.algorithm.ground_truth.enabled:
        yield "algorithm.ground_truth.enabled", "is for policy.family janus"
    if config.policy.layout is not None:
        yield "policy.layout", "is for policy.family janus"


def token_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Field and what is likely to be a mistake."""
    drawn = {"janus": ("tokens", "images"), "qwen": ("completion", "completions")}
    if config.policy.family not in drawn:
        return
    section, samples = drawn[config.policy.family]
    if getattr(config.rollout, section).top_k == 1:
        yield (
            f"rollout.{section}.top_k",
            f"1 draws the likeliest token always: {samples} of a prompt are all alike, and a group "
            "that does not vary teaches nothing; 0 draws from all",
        )


def _data_rejections(config: RunConfig) -> Rejections:
    data, kind = config.data, config.rollout.kind
    edits, pairs = has_edits(data, data.source), has_pairs(data, data.source)
    if kind == "edit" and not edits:
        yield (
            "rollout.kind",
            "edit needs training prompts that are edits: data.scene_task edit, or data.source "
            f"{' or '.join(EDIT_SOURCES)}",
        )
    elif kind != "edit" and edits:
        key = "data.scene_task" if data.source == "scenes" else "data.source"
        yield key, f"its prompts ask for changes of images; use rollout.kind edit, not {kind}"
    needs_pairs = {
        "algorithm.advantage_over": config.algorithm.advantage_over == "pair",
        "algorithm.ground_truth.enabled": config.algorithm.ground_truth.enabled,
    }
    for name, is_set in needs_pairs.items():
        if is_set and not pairs:
            sources = " or ".join(PAIR_SOURCES)
            yield name, f"needs pairs: data.scene_pairs above 0, or data.source {sources}"
    if config.algorithm.ground_truth.enabled and data.source == "paircomp":
        yield "algorithm.ground_truth.enabled", "data.source paircomp has no images"


def _model_rejections(config: RunConfig) -> Rejections:
    policy = config.policy
    if policy.resolution is not None:
        yield "policy.resolution", "janus draws images of one size; use null"
    if config.rollout.tokens.execution == "cuda_graph" and config.launch.device == "cpu":
        yield (
            "rollout.tokens.execution",
            "cuda_graph is for GPUs, and launch.device is cpu; use eager",
        )
    if holds_weights_alone(policy.path) and policy.layout is None:
        yield (
            "policy.layout",
            f"{policy.path} holds weights alone; name the model directory or hub id that its "
            "configuration and tokenizer come from, such as deepseek-community/Janus-Pro-7B",
        )
    if policy.layout is not None and "adapter" in config.export.formats:
        yield (
            "export.formats",
            f"adapter goes onto a model that transformers loads, and {policy.path} holds weights "
            "alone; use merged",
        )


def _algorithm_rejections(config: RunConfig) -> Rejections:
    algorithm, launch = config.algorithm, config.launch
    if launch.engine == "deepspeed" and launch.zero_stage == 3 and _draws_tokens(config):
        yield (
            "launch.zero_stage",
            "3 would gather the weights for every token; use 2, or ddp"
            + ", or no periodic evaluation (train.evaluate_every 0)" * (config.sampler is not None),
        )
    if algorithm.name != "grpo":
        yield "algorithm.name", f"{algorithm.name} is for policy.family sd3 and deepgen; use grpo"
    if algorithm.beta > 0 and algorithm.kl != "k3":
        yield "algorithm.kl", f"{algorithm.kl} is for policy.family sd3 and deepgen; tokens have k3"
    if algorithm.kl_placement == "reward":
        yield "algorithm.kl_placement", "the KL of tokens is added to the loss; use loss"


def _draws_tokens(config: RunConfig) -> bool:
    """Whether the trainer itself draws tokens: to train on, or to evaluate."""
    evaluates = config.train.evaluate_every > 0 and config.evaluation.completions != "none"
    return config.sampler is None or evaluates


def _introspection_rejections(config: RunConfig) -> Rejections:
    algorithm, rollout, train = config.algorithm, config.rollout, config.train
    if algorithm.advantage_from != "total":
        yield (
            "algorithm.advantage_from",
            f"{algorithm.advantage_from}: rewards of answers are made of the sum of the rewards; "
            "use total",
        )
    if train.resample_rounds:
        yield "train.resample_rounds", "other prompts for flat groups: not with introspect"
    if rollout.introspection.version == "v2" and rollout.old_log_prob == "rollout":
        yield (
            "rollout.old_log_prob",
            "v2 trains on accepted images behind another context than they were drawn in; use "
            "recompute",
        )
    for name, own in config.rewards.custom.items():
        if own.weight and not says_range(own.function):
            yield (
                f"rewards.custom.{name}.function",
                f"{own.function} says no range, and introspect rewards an answer by 1 - |reward - "
                "answer|: declare one between 0 and 1, @atelier.rewards.reward(value_range=(0, 1))",
            )
    weights = {name: one.weight for name, one in config.rewards.sections().items()}
    if weights and (min(weights.values()) < 0 or sum(weights.values()) > 1 + 1e-6):
        shown = ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
        yield (
            "rollout.kind",
            "introspect rewards an answer by 1 - |reward - answer|, so the reward has to lie "
            f"between 0 and 1: give the rewards weights that sum to 1 (now {shown})",
        )


def _ground_truth_rejections(config: RunConfig) -> Rejections:
    truth = config.algorithm.ground_truth
    for key, problem in truth.conflicts():
        yield f"algorithm.ground_truth.{key}", problem
    if not truth.enabled:
        return
    if config.rollout.kind != "draw":
        yield "algorithm.ground_truth.enabled", f"not with rollout.kind {config.rollout.kind}"
    if config.rollout.group_size < 4:
        yield (
            "rollout.group_size",
            f"{config.rollout.group_size}, of which 2 would be ground truth; use 4 or more",
        )


def _schedule_rejections(config: RunConfig) -> Rejections:
    for key, problem in config.train.schedule.conflicts(config.train.updates):
        yield f"train.schedule.{key}", problem
