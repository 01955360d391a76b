"""Samples that make several images: which are scored, and what each segment is worth.

Every image that was made is scored once. Scores are gathered by image; what they mean for a
sample's segments follows from the answers (algorithms.introspection).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from atelier.algorithms.introspection import (
    SegmentReward,
    final_rewards,
    first_accepted,
    segment_rewards,
)
from atelier.config.schema import RunConfig
from atelier.config.work import images_a_sample
from atelier.policies.base import Rollout, Sample
from atelier.training.distributed import World
from atelier.training.scores import StepScores


@dataclass(frozen=True)
class Drawn:
    """One image of a sample, its place among all images of the step, and whether it is what the
    sample came to."""

    sample: Sample
    place: int
    image: np.ndarray
    is_final: bool = True


def drawn_images(rollout: Rollout) -> Iterator[Drawn]:
    """The images of a rollout that are scored, sample after sample."""
    drawings = rollout.drawings
    for row, sample in enumerate(rollout.samples):
        if drawings is None:
            yield Drawn(sample, sample.index, rollout.images[row])
            continue
        count = drawings.images.shape[1]
        final = int(first_accepted(torch.from_numpy(drawings.accepted[row : row + 1])))
        for number in np.flatnonzero(drawings.made[row]).tolist():
            place = sample.index * count + number
            yield Drawn(sample, place, drawings.images[row, number], number == final)


@dataclass(frozen=True)
class StepSegments:
    """final: scores of what each sample came to; segments: of every segment, in order."""

    final: StepScores
    segments: list[StepScores]
    metrics: dict[str, float]


def step_segments(
    scores: StepScores, rollouts: Sequence[Rollout], config: RunConfig, world: World
) -> StepSegments:
    """From scores by image to scores by sample and segment. Collective.

    Args:
        scores: of all ranks' images, by place.
        rollouts: of this rank.
    """
    count = images_a_sample(config)
    if count == 1:
        return StepSegments(scores, [scores], {})
    accepted = _accepted(rollouts, world)
    samples = len(accepted)
    made = torch.zeros(samples * count, dtype=torch.bool)
    made[scores.index] = True
    total, valid = _by_sample(scores, made, samples, count)
    first = scores.index.new_tensor([int(row.nonzero()[0]) for row in made.view(samples, count)])
    rows = torch.searchsorted(scores.index, torch.arange(samples) * count + first)
    version = config.rollout.introspection.version

    def scored(reward: SegmentReward) -> StepScores:
        return replace(
            scores,
            index=torch.arange(samples),
            total=torch.where(reward.valid, reward.reward, torch.nan).float(),
            valid=reward.valid,
            group_ids=scores.group_ids[rows],
            values={},
            weights={},
        )

    segments = [scored(one) for one in segment_rewards(total, valid, accepted, version)]
    final = _final(scores, final_rewards(total, valid, accepted), accepted, count)
    return StepSegments(final, segments, _metrics(segments, accepted))


def _accepted(rollouts: Sequence[Rollout], world: World) -> Tensor:
    """The answers of all samples of the step [N, K - 1]."""
    mine: dict[int, np.ndarray] = {}
    for one in rollouts:
        if one.drawings is None:
            raise ValueError("a rollout of several images says nothing of its answers")
        mine.update(zip((s.index for s in one.samples), one.drawings.accepted, strict=True))
    everyone = {index: row for part in world.gather(mine) for index, row in part.items()}
    return torch.from_numpy(np.stack([everyone[index] for index in sorted(everyone)]))


def _by_sample(scores: StepScores, made: Tensor, samples: int, count: int) -> tuple[Tensor, Tensor]:
    total = torch.zeros(samples * count, dtype=torch.float32)
    valid = torch.zeros(samples * count, dtype=torch.bool)
    total[scores.index] = torch.where(scores.valid, scores.total, 0.0)
    valid[scores.index] = scores.valid
    return total.view(samples, count), (valid & made).view(samples, count)


def _final(scores: StepScores, reward: SegmentReward, accepted: Tensor, count: int) -> StepScores:
    """Every reward's score of the image that a sample came to."""
    places = torch.arange(len(accepted)) * count + first_accepted(accepted)
    rows = torch.searchsorted(scores.index, places)
    return replace(
        scores,
        index=torch.arange(len(accepted)),
        total=torch.where(reward.valid, reward.reward, torch.nan).float(),
        valid=reward.valid,
        group_ids=scores.group_ids[rows],
        values={name: value[rows] for name, value in scores.values.items()},
        weights={name: weight[rows] for name, weight in scores.weights.items()},
    )


def _metrics(segments: Sequence[StepScores], accepted: Tensor) -> dict[str, float]:
    """Mean rewards of first image, answers and last image, and how many were accepted."""
    named = {"first": segments[0], "last": segments[-1]}
    named |= {f"answer_{number}": one for number, one in enumerate(segments[1::2], start=1)}
    means = {
        f"introspection/{name}": float(one.total[one.valid].double().mean())
        for name, one in named.items()
        if bool(one.valid.any())
    }
    shares = accepted.double().mean(0).tolist()
    return means | {
        f"introspection/accepted_{number}": share for number, share in enumerate(shares, start=1)
    }
