"""Bi-level rewards of a sample that draws, judges its drawing and draws again. Pure.

A sample makes images 1 ... K with an answer after each but the last; the first Yes accepts. Its
segments are image, answer, image, ..., image, and each is rewarded on its own. Source: FocusDiff
and Janus-Pro-R1; more than two rounds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.config.sections.tokens import Version


@dataclass(frozen=True)
class SegmentReward:
    """reward [N], finite where valid; valid [N] bool."""

    reward: Tensor
    valid: Tensor


def first_accepted(accepted: Tensor) -> Tensor:
    """Which image [N] each sample comes to: the first that was accepted, else the last.

    accepted: [N, K - 1] bool.
    """
    rounds = accepted.shape[1]
    positions = torch.arange(rounds, device=accepted.device).expand_as(accepted)
    return torch.where(accepted, positions, rounds).amin(1)


def final_rewards(scores: Tensor, valid: Tensor, accepted: Tensor) -> SegmentReward:
    """What the image that a sample comes to is worth.

    scores: [N, K] of every image; valid: [N, K] bool; accepted: [N, K - 1] bool.
    """
    return _of_image(scores, valid, first_accepted(accepted))


def segment_rewards(
    scores: Tensor, valid: Tensor, accepted: Tensor, version: Version
) -> list[SegmentReward]:
    """Rewards of the 2 K - 1 segments, in their order.

    Of an image: its score; behind an accepted one, v1 and v2 give the accepted one's, v3 its own.
    Of an answer: 1 - |score - answer|, so that being sure and wrong costs most; behind an accepted
    image there is none in v1 and v2.

    Args:
        scores: [N, K], in [0, 1].
        valid: [N, K] bool; a missing score makes every segment that needs it missing.
        accepted: [N, K - 1] bool, the answers.
    """
    ends = first_accepted(accepted)
    segments = []
    for image in range(scores.shape[1]):
        own = torch.full_like(ends, image)
        segments.append(_of_image(scores, valid, own if version == "v3" else own.minimum(ends)))
        if image < accepted.shape[1]:
            asked = valid[:, image] if version == "v3" else valid[:, image] & (image <= ends)
            told = accepted[:, image].to(scores.dtype)
            reward = 1 - (scores[:, image] - told).abs()
            segments.append(SegmentReward(torch.where(asked, reward, 0.0), asked))
    return segments


def _of_image(scores: Tensor, valid: Tensor, image: Tensor) -> SegmentReward:
    there = valid.gather(1, image[:, None])[:, 0]
    score = scores.gather(1, image[:, None])[:, 0]
    return SegmentReward(torch.where(there, score, 0.0), there)
