"""From a step number to this rank's micro-batches. Pure functions of the configuration.

Micro-batches are cut from the step's samples in a fixed order and never depend on the world size,
so a rollout is bit-equal on one rank and on eight. Which update trains on which micro-batch is
drawn anew each step from a key.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from atelier.config.schema import RunConfig
from atelier.config.whole_groups import images_together
from atelier.data.curriculum import curriculum_indices, mix
from atelier.data.ground_truth import has_ground_truth
from atelier.data.keys import key, uniform
from atelier.data.prompts import Prompt
from atelier.data.rows import pair_of
from atelier.data.samplers import SHARE, row_indices
from atelier.legible import metric_word
from atelier.policies.base import Sample

Item = TypeVar("Item")
MicroBatch = Sequence[Sample]


def step_samples(
    prompts: Sequence[Prompt], step: int, config: RunConfig, round: int = 0
) -> list[Sample]:
    """All samples of a step: group g holds indices g * group_size ... (g + 1) * group_size - 1.

    The groups of a pair are neighbours. Where ground truth takes part, the last two samples of each
    of its groups are the prompt's own image and its partner's.

    Args:
        round: above 0, samples that may take the place of those of earlier rounds, of prompts that
            no earlier round of the step has.

    Raises:
        PlanError: there are not so many prompts.
    """
    size = config.rollout.group_size
    groups = [prompts[place] for place in _places(prompts, step, config, round)]
    samples = []
    for group, (prompt, pair) in enumerate(zip(groups, _pairs(groups), strict=True)):
        shares = pair is not None and config.algorithm.advantage_over == "pair"
        truths: list[Prompt] = []
        if pair is not None and _shows_truth(config, step, pair, round):
            both = [prompt, groups[2 * pair + 1 - group]]
            truths = both if all(map(has_ground_truth, both)) else []
        for member in range(size):
            truth = truths[member - size] if member >= size - len(truths) else None
            samples.append(
                Sample(
                    index=group * size + member,
                    group_id=group,
                    prompt=prompt,
                    round=round,
                    pair=pair if shares else None,
                    truth=truth,
                )
            )
    return samples


def _places(prompts: Sequence[Prompt], step: int, config: RunConfig, round: int) -> list[int]:
    train, curriculum = config.train, config.data.curriculum
    if curriculum.scores is None:
        return row_indices(prompts, step, train.prompts_per_step, train.seed, round)
    return curriculum_indices(
        prompts,
        step,
        train.steps,
        curriculum.levels,
        train.prompts_per_step,
        train.seed,
        round,
    )


def drawn_mix(samples: Sequence[Sample], step: int, config: RunConfig) -> dict[str, float]:
    """Metrics of which prompts a step has: how hard those of a curriculum are, and which share of
    those of a mixture is of each data set that was drawn."""
    curriculum = config.data.curriculum
    groups = [one.prompt for one in samples[:: config.rollout.group_size]]
    if curriculum.scores is not None:
        return mix(groups, step, config.train.steps, curriculum.levels)
    names = Counter(metric_word(one.metadata["dataset"]) for one in groups if SHARE in one.metadata)
    return {f"mixture/{name}": count / len(groups) for name, count in sorted(names.items())}


def _pairs(groups: Sequence[Prompt]) -> list[int | None]:
    """Of each group that is half of a pair, the first of its two groups."""
    numbers = [pair_of(prompt) for prompt in groups]
    firsts: list[int | None] = [None] * len(groups)
    for group, (one, other) in enumerate(pairwise(numbers)):
        if one is not None and one == other:
            firsts[group] = firsts[group + 1] = group
    return firsts


def _shows_truth(config: RunConfig, step: int, pair: int, round: int) -> bool:
    """Whether a pair's ground truth takes part: less and less often."""
    settings, train = config.algorithm.ground_truth, config.train
    if not settings.enabled:
        return False
    updates = (step - 1) * train.updates_per_step * train.inner_epochs
    drawn = uniform("ground truth", train.seed, step, pair, round)
    return drawn <= settings.probability(updates)


def micro_batches_by_update(
    samples: Sequence[Sample], step: int, config: RunConfig, rank: int, world_size: int
) -> list[list[MicroBatch]]:
    """This rank's micro-batches, one list an optimizer update.

    The plan guarantees that the counts divide: every rank gets as many in every update. Those that
    stay together (`images_together`) follow each other in one rank's part of one update.
    """
    size = config.rollout.micro_batch_size
    pieces = _cut(_cut(samples, size), images_together(config) // size)
    random.Random(key("updates", config.train.seed, step)).shuffle(pieces)
    updates = _cut(pieces, len(pieces) // config.train.updates_per_step)
    return [[batch for piece in update[rank::world_size] for batch in piece] for update in updates]


def _cut(items: Sequence[Item], length: int) -> list[Sequence[Item]]:
    return [items[start : start + length] for start in range(0, len(items), length)]
