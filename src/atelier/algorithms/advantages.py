"""Group-relative advantages. Pure; a missing score takes no part in any statistic.

Source: spec flow 3.1. Stds are biased (divided by n) and get EPSILON added outside the root.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-4


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    valid: Tensor,
    std: Literal["group", "batch", "none"] = "group",
) -> Tensor:
    """(r - mean of its group) / (std + EPSILON), float64 inside, float32 out: [N].

    rewards [N]; group_ids [N] integers; valid [N] bool, false where the score is missing: those
    get advantage 0. A group with one valid member has advantage 0. `std`: of the group, of all
    valid rewards of the batch, or none (Dr.GRPO).
    """
    values = torch.where(valid, rewards.double(), 0.0)
    _, index = torch.unique(group_ids, return_inverse=True)
    count = _sum_by_group(valid.double(), index).clamp(min=1)
    mean = _sum_by_group(values, index) / count
    centred = torch.where(valid, values - mean[index], 0.0)
    if std == "group":
        spread = (_sum_by_group(centred**2, index) / count).sqrt()[index] + EPSILON
    elif std == "batch":
        spread = values[valid].std(correction=0) + EPSILON if valid.any() else torch.tensor(1.0)
    else:
        spread = torch.tensor(1.0)
    return (centred / spread).float()


def zero_std_share(rewards: Tensor, group_ids: Tensor, valid: Tensor) -> float:
    """Share of groups whose valid rewards are all equal: they teach nothing."""
    groups = torch.unique(group_ids)
    same = 0
    for group in groups:
        members = rewards[(group_ids == group) & valid]
        same += int(members.numel() == 0 or bool((members == members[0]).all()))
    return same / max(len(groups), 1)


def _sum_by_group(values: Tensor, index: Tensor) -> Tensor:
    total = torch.zeros(int(index.max()) + 1 if len(index) else 0, dtype=values.dtype)
    return total.index_add_(0, index, values)
