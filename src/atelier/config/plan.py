"""The batch planner: every number of a run, before anything starts.

Group size is independent of the number of processes and of the micro-batch. A plan that cannot
work is refused with the names of the fields that make it so, all of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from atelier.config.facts.read import Facts, known_facts, read_model_facts
from atelier.config.judge_work import (
    Cost,
    JudgeWork,
    budget_warnings,
    judge_costs,
    judge_work,
)
from atelier.config.memory.estimate import Memory, estimate, estimate_sampling
from atelier.config.model_rules import model_rejections
from atelier.config.placement import placement_rows
from atelier.config.plan_warnings import plan_warnings
from atelier.config.rejections import rejections, rewards_in_use
from atelier.config.schema import RunConfig
from atelier.config.sections.launch import Shares
from atelier.config.suite_data import usable_heldout
from atelier.config.work import work
from atelier.errors import ConfigError, PlanError


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
    rollout, train = config.rollout, config.train
    samples_per_step = train.prompts_per_step * rollout.group_size
    micro_batches = samples_per_step // rollout.micro_batch_size
    each, shares = work(config, facts), config.launch.shares(ranks)
    samples = samples_per_step * train.steps
    sampled = samples * (1 + train.resample_rounds)
    scored = sampled * each.images
    evaluated = _evaluated(config, heldout)
    judged = judge_work(config, scored, evaluated)
    memory, sampling_memory = _memories(config, facts, samples_per_step, each.actions, shares)
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
        trained_actions=each.actions,
        acts_by_tokens=not config.policy.denoises,
        steps=train.steps,
        updates=train.updates,
        images=samples * each.images,
        reward_calls=scored * len(rewards_in_use(config.rewards)),
        evaluations=_evaluations(config),
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
        warnings=_told(config, facts, judged),
    )


def _evaluations(config: RunConfig) -> int:
    """Periodic ones."""
    every = config.train.evaluate_every
    return config.train.steps // every if every else 0


def _evaluated(config: RunConfig, heldout: int) -> int:
    """Held-out images before, during and after training, of so many prompts at most."""
    evaluation = config.evaluation
    whole = 2 * min(evaluation.prompts, heldout)
    periodic = _evaluations(config) * min(evaluation.periodic_prompts, heldout)
    return (whole + periodic) * evaluation.images_of_a_prompt


def _memories(
    config: RunConfig, facts: Facts | None, samples: int, actions: int, shares: Shares
) -> tuple[Memory | None, Memory | None]:
    """Of a rank that trains, and of one that only samples, of a step's samples."""
    if facts is None:
        return None, None
    trained = samples // shares.training
    memory = estimate(config, facts, trained, actions, shares.training)
    if not config.launch.rollout_processes:
        return memory, None
    return memory, estimate_sampling(config, facts, samples // shares.sampling, actions)


def _told(config: RunConfig, facts: Facts | None, judged: tuple[JudgeWork, ...]) -> tuple[str, ...]:
    """Every warning, as a line."""
    warnings = (*plan_warnings(config, facts), *budget_warnings(config, judged))
    return tuple(f"{field}: {text}" for field, text in warnings)


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
