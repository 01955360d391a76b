"""The batch planner: every number of a run, before anything starts.

Group size is independent of the number of processes and of the micro-batch. A plan that cannot
work is refused with the names of the fields that make it so, all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atelier.config.access_tokens import access_token_warnings
from atelier.config.completion_rules import completion_warnings
from atelier.config.facts.known_janus import IMAGE_TOKENS
from atelier.config.facts.read import Facts, known_facts, read_model_facts, source
from atelier.config.facts.sd3 import SD3Facts
from atelier.config.gpu_seen import gpu_warnings
from atelier.config.judge_work import (
    Cost,
    JudgeWork,
    budget_warnings,
    judge_costs,
    judge_work,
)
from atelier.config.judged import judge_warnings
from atelier.config.memory.estimate import Memory, estimate, estimate_sampling
from atelier.config.memory.prompts import prompt_warnings
from atelier.config.model_rules import model_rejections
from atelier.config.objective_rules import objective_warnings
from atelier.config.paid_judges import paid_judge_warnings
from atelier.config.placement import placement_rows, placement_warnings
from atelier.config.policy_rules import policy_warnings
from atelier.config.rejections import rejections, rewards_in_use
from atelier.config.schema import RunConfig
from atelier.config.sections.launch import LOOPBACK, Shares
from atelier.config.sft_rules import sft_warnings
from atelier.config.space import space_warnings
from atelier.config.suite_data import usable_heldout
from atelier.config.suite_rules import suite_warnings
from atelier.config.token_rules import token_warnings
from atelier.config.without_effect import without_effect
from atelier.config.work import work
from atelier.errors import ConfigError, PlanError

# Below this, results in float32 depend on the micro-batch in the last bits, and OCR and JPEG
# rewards are steps: one flipped pixel can change a score. In 16 bits none is
# large enough.
SMALLEST_STEADY_MICRO_BATCH = 8

SMALLEST_PUBLISHED_GROUP = 7  # FocusDiff's

# Ratios of ratio_norm are a few 1e-5 from 1: as wide a clip range was meant for another log_prob.
WIDE_GUARD_CLIP = 1e-3


@dataclass(frozen=True)
class Plan:
    """A run in numbers. `images`, `passes` and `calls` count for the whole run.

    A sample is what is compared with others of its group: an image or, where the policy judges what
    it drew, a few.
    """

    prompts_per_step: int
    group_size: int
    samples_per_step: int
    images_a_sample: int  # at most
    micro_batch_size: int
    micro_batches: int  # of a step, over all processes
    processes: int
    shares: Shares  # how many of them sample, and how many train
    updates_per_step: int
    accumulation: int  # micro-batches a process adds up for one update
    trained_actions: int  # of a sample: denoising steps in the window, noise levels, or tokens
    acts_by_tokens: bool  # and passes are counted as work.py says
    steps: int
    updates: int
    images: int  # sampled to train on; at most
    reward_calls: int  # scores asked for: images x rewards; at most, where groups are resampled
    evaluations: int  # periodic ones
    evaluation_images: int  # baseline, periodic, final
    judged: tuple[JudgeWork, ...]  # what judges are asked for scores and evaluations
    judge_costs: tuple[tuple[str, Cost], ...]  # by judge
    rollout_passes: int  # through the model, or token steps; at most
    replay_passes: int  # over what was rolled out, with gradients and without
    evaluation_passes: int  # through the model, or token steps
    pictures: int  # with captions, learned from beside the rewards; each is a pass with gradients
    painting_passes: int  # of a frozen transformer that paints: to train on, and to evaluate
    memory: Memory | None  # of a rank that trains; None when the model is not here, nor known
    sampling_memory: Memory | None  # of one that only samples; None, too, where none does
    placement: tuple[tuple[str, str, str], ...]  # who computes where, and a remark
    model_is_here: bool  # or the memory is that of the published model
    warnings: tuple[str, ...]

    @property
    def samples_apart(self) -> bool:
        """Whether some processes only sample, and the others only train."""
        return self.shares.sampling < self.processes

    @property
    def largest_memory(self) -> Memory | None:
        """Of the ranks that need most."""
        known = [one for one in (self.memory, self.sampling_memory) if one is not None]
        return max(known, key=lambda one: one.peak, default=None)

    @property
    def judge_calls(self) -> int:
        """To judges for the scores, without repairs and cache; at most, likewise."""
        return sum(one.calls for one in self.judged if not one.evaluates)

    @property
    def evaluation_judge_calls(self) -> int:
        """To the suite's judge, without repairs and cache."""
        return sum(one.calls for one in self.judged if one.evaluates)


def plan(config: RunConfig, world_size: int | None = None, heldout: int | None = None) -> Plan:
    """Derive every batch number of a run.

    Reads the headers of the model's files and imports no torch.

    Args:
        world_size: replaces launch.ranks where the trainer knows better.
        heldout: held-out prompts that the suite can use, where the prompt files were counted;
            default: as many as are asked for.

    Raises:
        PlanError: it cannot work; every rejection is listed.
    """
    ranks = world_size or config.launch.ranks
    refused = list(rejections(config, ranks))
    here = facts = None
    try:
        here = read_model_facts(config)
        refused += model_rejections(config, here)
        facts = here or known_facts(config)
    except ConfigError as error:
        key = "policy.path" if config.policy.layout is None else "policy.layout"
        refused.append((key, str(error)))
    if refused:
        reasons = [f"{field}: {reason}" for field, reason in refused]
        raise PlanError("\n  ".join(["this plan cannot work:", *reasons]))
    most = usable_heldout(config.data, config.evaluation.suite)
    there = most if heldout is None else min(heldout, most)
    return _derive(config, ranks, facts, here is not None, there)


def _derive(config: RunConfig, ranks: int, facts: Facts | None, here: bool, heldout: int) -> Plan:
    rollout, train, evaluation = config.rollout, config.train, config.evaluation
    samples_per_step = train.prompts_per_step * rollout.group_size
    micro_batches = samples_per_step // rollout.micro_batch_size
    each = work(config, facts)
    samples = samples_per_step * train.steps
    sampled = samples * (1 + train.resample_rounds)
    scored = sampled * each.images
    evaluations = train.steps // train.evaluate_every if train.evaluate_every else 0
    evaluated = 2 * min(evaluation.prompts, heldout)
    evaluated += evaluations * min(evaluation.periodic_prompts, heldout)
    evaluated *= evaluation.images_of_a_prompt
    judged = judge_work(config, scored, evaluated)
    actions, shares = each.actions, config.launch.shares(ranks)
    memory = sampling_memory = None
    if facts is not None:
        trained = samples_per_step // shares.training
        memory = estimate(config, facts, trained, actions, shares.training)
    if facts is not None and config.launch.rollout_processes:
        drawn = samples_per_step // shares.sampling
        sampling_memory = estimate_sampling(config, facts, drawn, actions)
    return Plan(
        prompts_per_step=train.prompts_per_step,
        group_size=rollout.group_size,
        samples_per_step=samples_per_step,
        images_a_sample=each.images,
        micro_batch_size=rollout.micro_batch_size,
        micro_batches=micro_batches,
        processes=ranks,
        shares=shares,
        updates_per_step=train.updates_per_step,
        accumulation=micro_batches // (train.updates_per_step * shares.training),
        trained_actions=actions,
        acts_by_tokens=not config.policy.denoises,
        steps=train.steps,
        updates=train.updates,
        images=samples * each.images,
        reward_calls=scored * len(rewards_in_use(config.rewards)),
        evaluations=evaluations,
        evaluation_images=evaluated,
        judged=judged,
        judge_costs=tuple(judge_costs(config, judged)),
        rollout_passes=sampled * each.rollout,
        replay_passes=samples * _replays(config) * each.replay,
        evaluation_passes=evaluated * each.evaluation,
        pictures=_pictures(config),
        painting_passes=sampled * each.painting + evaluated * each.evaluation_painting,
        memory=memory,
        sampling_memory=sampling_memory,
        placement=tuple(placement_rows(config)),
        model_is_here=here,
        warnings=tuple(
            f"{field}: {text}"
            for field, text in (*_warnings(config, facts), *budget_warnings(config, judged))
        ),
    )


def _replays(config: RunConfig) -> int:
    """How often what a sample did is passed through a model: with gradients in every epoch, each
    time through the reference, too, and once to find its old log-probs."""
    reference = config.algorithm.beta > 0
    recomputed = config.rollout.old_log_prob == "recompute"
    return config.train.inner_epochs * (1 + reference) + recomputed


def _pictures(config: RunConfig) -> int:
    """Captioned pictures of the whole run."""
    sft, train = config.train.sft, config.train
    updates = train.steps // sft.every * train.updates_a_step
    return updates * sft.pictures_per_update if sft.enabled else 0


def _warnings(config: RunConfig, facts: Facts | None) -> Iterator[tuple[str, str]]:
    rollout, train = config.rollout, config.train
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
    if train.checkpoint_every > train.steps:
        yield "train.checkpoint_every", f"no checkpoint before the last of {train.steps} steps"
    if train.evaluate_every > train.steps:
        yield "train.evaluate_every", f"no periodic evaluation in {train.steps} steps"
    yield from without_effect(config)
    yield from suite_warnings(config)
    yield from judge_warnings(config.rewards)
    yield from access_token_warnings(config)
    yield from paid_judge_warnings(config)
    yield from gpu_warnings(config)
    yield from placement_warnings(config)
    yield from objective_warnings(config)
    yield from completion_warnings(config)
    yield from token_warnings(config)
    yield from sft_warnings(config)
    yield from policy_warnings(config)
    clip = config.algorithm.clip_range
    if rollout.log_prob == "ratio_norm" and clip is not None and clip >= WIDE_GUARD_CLIP:
        yield (
            "algorithm.clip_range",
            f"{clip:g} clips hardly anything of ratio_norm, whose ratios are narrow; null is its "
            "usual 2e-6",
        )
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
    if isinstance(facts, SD3Facts):
        yield from prompt_warnings(config, facts)
    if facts is not None:
        yield from space_warnings(config, facts)
    else:
        yield "policy.path", _unknown(config)


def _unknown(config: RunConfig) -> str:
    name = source(config.policy)
    text = f"{name} is no local directory: taken for a hub id, memory unknown"
    if config.policy.family == "janus":
        text += f", and {IMAGE_TOKENS} tokens an image assumed, as of every published Janus"
    return text
