"""The batch planner: every number of a run, before anything starts (design section 3).

Group size is independent of the number of processes and of the micro-batch. A plan that cannot
work is refused with the names of the fields that make it so, all of them at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from atelier.config.log_probs import log_prob_name
from atelier.config.memory import Memory, ModelFacts, estimate, read_model_facts
from atelier.config.paths import from_root, is_file
from atelier.config.prompt_files import FOLDER_FILES, can_be_had, prompt_files
from atelier.config.rewards import RewardsConfig
from atelier.config.schema import RunConfig
from atelier.config.space import space_warnings
from atelier.errors import ConfigError, PlanError

# Below this, results depend on the micro-batch in the last bits, and OCR and JPEG rewards are
# steps: one flipped pixel can change a score (spec platform 14).
SMALLEST_STEADY_MICRO_BATCH = 8

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

# Prompt formats that carry no text to be read in the image.
_WITHOUT_TARGET = ("plain", "geneval", "unigenbench", "paircomp")


@dataclass(frozen=True)
class Plan:
    """A run in numbers. `images`, `passes` and `calls` count for the whole run."""

    prompts_per_step: int
    group_size: int
    images_per_step: int
    micro_batch_size: int
    micro_batches: int  # of a step, over all processes
    processes: int
    updates_per_step: int
    accumulation: int  # micro-batches a process adds up for one update
    window: int  # stochastic, trained denoising steps
    steps: int
    updates: int
    images: int  # rolled out
    reward_calls: int  # scores asked for: images x rewards
    evaluations: int  # periodic ones
    evaluation_images: int  # baseline, periodic, final
    rollout_passes: int  # transformer passes of one image each, without gradient
    replay_passes: int  # the same with gradient
    evaluation_passes: int
    memory: Memory | None  # a rank; None when the model is not on this machine
    warnings: tuple[str, ...]


def plan(config: RunConfig, world_size: int | None = None) -> Plan:
    """Derive every batch number of a run.

    `world_size` replaces launch.processes where the trainer knows better. Reads the headers of
    the model's files and imports no torch. Raises PlanError listing every rejection.
    """
    ranks = world_size or config.launch.processes
    rejections = [f"{field}: {reason}" for field, reason in _rejections(config, ranks)]
    facts: ModelFacts | None = None
    try:
        facts = read_model_facts(config)
        rejections += [f"{field}: {reason}" for field, reason in _model_rejections(config, facts)]
    except ConfigError as error:
        rejections.append(f"policy.path: {error}")
    if rejections:
        raise PlanError("\n  ".join(["this plan cannot work:", *rejections]))
    return _derive(config, ranks, facts)


def _derive(config: RunConfig, ranks: int, facts: ModelFacts | None) -> Plan:
    rollout, train, evaluation = config.rollout, config.train, config.evaluation
    images_per_step = train.prompts_per_step * rollout.group_size
    micro_batches = images_per_step // rollout.micro_batch_size
    window = _window_size(config)
    images = images_per_step * train.steps
    evaluations = train.steps // train.evaluate_every if train.evaluate_every else 0
    evaluated = 2 * evaluation.prompts + evaluations * evaluation.periodic_prompts
    branches = 2 if rollout.guidance_scale > 1 else 1
    reference = 2 if config.algorithm.beta > 0 else 1
    return Plan(
        prompts_per_step=train.prompts_per_step,
        group_size=rollout.group_size,
        images_per_step=images_per_step,
        micro_batch_size=rollout.micro_batch_size,
        micro_batches=micro_batches,
        processes=ranks,
        updates_per_step=train.updates_per_step,
        accumulation=micro_batches // (train.updates_per_step * ranks),
        window=window,
        steps=train.steps,
        updates=train.steps * train.updates_per_step,
        images=images,
        reward_calls=images * len(rewards_in_use(config.rewards)),
        evaluations=evaluations,
        evaluation_images=evaluated,
        rollout_passes=images * rollout.num_inference_steps * branches,
        replay_passes=images * window * branches * reference,
        evaluation_passes=evaluated
        * evaluation.num_inference_steps
        * (2 if evaluation.guidance_scale > 1 else 1),
        memory=estimate(config, facts, images_per_step // ranks, window, ranks) if facts else None,
        warnings=tuple(f"{field}: {text}" for field, text in _warnings(config, ranks, facts)),
    )


def rewards_in_use(rewards: RewardsConfig) -> dict[str, float]:
    """Name and weight of every reward that is set."""
    return {name: section.weight for name, section in rewards.sections().items()}


def _window_size(config: RunConfig) -> int:
    low, high = config.rollout.window.bounds(config.rollout.num_inference_steps)
    return high - low if config.rollout.window.strategy == "all" else config.rollout.window.size


def _rejections(config: RunConfig, ranks: int) -> Iterator[tuple[str, str]]:
    yield from _batch_rejections(config, ranks)
    yield from _rollout_rejections(config)
    yield from _algorithm_rejections(config)
    yield from _reward_rejections(config)
    yield from _data_rejections(config)


def _batch_rejections(config: RunConfig, ranks: int) -> Iterator[tuple[str, str]]:
    train, size = config.train, config.rollout.micro_batch_size
    images = train.prompts_per_step * config.rollout.group_size
    if config.rollout.group_size < 2:
        yield "rollout.group_size", "1 image has no group to be compared with; use 2 or more"
    if size > images:
        yield "rollout.micro_batch_size", f"{size} is more than the {images} images of a step"
        return
    if images % size:
        yield (
            "rollout.micro_batch_size",
            f"{size} does not divide the {images} images of a step "
            f"(train.prompts_per_step {train.prompts_per_step} x "
            f"rollout.group_size {config.rollout.group_size})",
        )
        return
    parts = train.updates_per_step * ranks
    if (images // size) % parts:
        yield (
            "train.updates_per_step",
            f"{images // size} micro-batches a step cannot be shared equally by "
            f"{train.updates_per_step} update(s) x {ranks} process(es) (launch.processes)",
        )


def _rollout_rejections(config: RunConfig) -> Iterator[tuple[str, str]]:
    rollout, steps = config.rollout, config.rollout.num_inference_steps
    if rollout.noise_level == 0:
        yield "rollout.noise_level", "0 leaves nothing stochastic to train; use more than 0"
    if rollout.dynamics == "cps" and log_prob_name(rollout) != "cps_raw":
        yield (
            "rollout.log_prob",
            f"{rollout.log_prob} assumes a Gaussian whose std does not go to 0, as that of "
            "rollout.dynamics cps does; use cps_raw, or flow_sde",
        )
    if steps < 2:
        yield "rollout.num_inference_steps", "1 step is the last one, which is never stochastic"
        return
    low, high = rollout.window.bounds(steps)
    if high > steps - 1:
        yield (
            "rollout.window.range",
            f"[{low}, {high}) reaches past the {steps - 1} steps that can be stochastic "
            f"(rollout.num_inference_steps {steps}, the last one never is)",
        )
    elif low >= high:
        yield "rollout.window.range", f"[{low}, {high}) is empty"
    elif rollout.window.strategy == "fast" and rollout.window.size > high - low:
        yield (
            "rollout.window.size",
            f"{rollout.window.size} does not fit into rollout.window.range [{low}, {high})",
        )


def _algorithm_rejections(config: RunConfig) -> Iterator[tuple[str, str]]:
    if config.algorithm.beta > 0 and config.algorithm.kl == "k3":
        yield "algorithm.kl", "k3 is for token policies; sd3 has latent_mean and velocity"


def _reward_rejections(config: RunConfig) -> Iterator[tuple[str, str]]:
    weights = rewards_in_use(config.rewards)
    if not any(weights.values()):
        why = "all weights are 0" if weights else "none is set"
        names = ", ".join(
            sorted(RewardsConfig.model_fields.keys() - {"min_valid_share", "deadline"})
        )
        yield "rewards", f"{why}; give one a weight, such as rewards.ocr.weight (known: {names})"
    if config.rewards.ocr is not None and _no_target(config):
        yield "rewards.ocr", f"needs a text to look for, and {_no_target(config)} has none"


def _data_rejections(config: RunConfig) -> Iterator[tuple[str, str]]:
    data, evaluation = config.data, config.evaluation
    for split, file in prompt_files(data).items():
        if not can_be_had(file):
            name = "path" if split == "train" else "heldout_path"
            folder = FOLDER_FILES.get(data.source, {split: file.name})[split]
            hint = f", and no folder with {folder}" if file.name != folder else ""
            yield f"data.{name}", f"there is no file {file}{hint}"
    if config.train.prompts_per_step > data.train_prompts:
        yield (
            "train.prompts_per_step",
            f"{config.train.prompts_per_step} is more than data.train_prompts {data.train_prompts}",
        )
    for name in ("prompts", "periodic_prompts"):
        wanted = getattr(evaluation, name)
        if wanted > data.heldout_prompts:
            yield (
                f"evaluation.{name}",
                f"{wanted} is more than data.heldout_prompts {data.heldout_prompts}",
            )


def _model_rejections(config: RunConfig, facts: ModelFacts | None) -> Iterator[tuple[str, str]]:
    policy = config.policy
    if facts is None:
        if not _HUB_ID.fullmatch(policy.path) or is_file(from_root(policy.path)):
            yield "policy.path", f"{policy.path} is neither a pipeline directory nor a hub id"
    elif policy.trainable == "lora" and not facts.adapter_parameters:
        names = ", ".join(policy.lora.target_modules) or "nothing"
        yield "policy.lora.target_modules", f"{names} names no module of the transformer"


def _no_target(config: RunConfig) -> str | None:
    if config.data.source in _WITHOUT_TARGET:
        return f"data.source {config.data.source}"
    if config.data.source == "scenes" and config.data.scene_kind == "shapes":
        return "data.scene_kind shapes"
    return None


def _warnings(config: RunConfig, ranks: int, facts: ModelFacts | None) -> Iterator[tuple[str, str]]:
    rollout, train = config.rollout, config.train
    if rollout.micro_batch_size < SMALLEST_STEADY_MICRO_BATCH:
        yield (
            "rollout.micro_batch_size",
            f"below {SMALLEST_STEADY_MICRO_BATCH} the last bits depend on it, "
            "and rewards that are steps can flip",
        )
    if rollout.group_size < SMALLEST_STEADY_MICRO_BATCH:
        yield "rollout.group_size", "advantages of small groups are noisy; 16 to 24 is usual"
    if train.checkpoint_every > train.steps:
        yield "train.checkpoint_every", f"no checkpoint before the last of {train.steps} steps"
    if train.evaluate_every > train.steps:
        yield "train.evaluate_every", f"no periodic evaluation in {train.steps} steps"
    if config.launch.threads < ranks:
        yield "launch.threads", f"{config.launch.threads} for {ranks} processes: one each is used"
    if facts is not None:
        yield from space_warnings(config, facts)
    else:
        yield (
            "policy.path",
            f"{config.policy.path} is no local directory: taken for a hub id, memory unknown",
        )
