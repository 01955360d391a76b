"""What the ratio of an action is that the policy did not choose: ground truth. Pure.

Source: FocusDiff and Janus-Pro-R1 (as_sampled). The others are corrections for images that come
from elsewhere: whoever chose them would always have chosen so, with probability 1.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from atelier.algorithms.ratio import ratio_of

Importance = Literal["as_sampled", "probability", "shaped"]


def ground_truth_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    importance: Importance,
    shaping: float = 0.1,
) -> Tensor:
    """-A times the ratio, without a clip: [B, A].

    as_sampled: exp(log_prob - old_log_prob), whose gradient is that of log_prob at first.
    probability: p = exp(log_prob), which hardly moves what is improbable.
    shaped: p / (p + shaping), whose gradient is largest at p = shaping.
    """
    if importance == "as_sampled":
        ratio = ratio_of(log_prob - old_log_prob)
    else:
        ratio = ratio_of(log_prob)
        if importance == "shaped":
            ratio = ratio / (ratio + shaping)
    return -advantages * ratio
