"""Group-relative advantages. Pure; a missing score takes no part in any statistic.

A batch is the whole step: the images of all ranks. Source: MM-GRPO (groups, std, each reward
on its own, trimmed statistics, the best and the worst of n); FocusDiff and Janus-Pro-R1 (ddof 1);
DeepGen-RL (GDPO). Stds get EPSILON added outside the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-4
ROUNDING = 1e-12  # of float64 means, relative to the largest value
FEWEST_COMPARED = 2  # images of a group: one alone has nothing to be better than

Std = Literal["group", "batch", "none"]


def comparable(group_ids: Tensor, valid: Tensor, min_share: float) -> Tensor:
    """Which samples [N] take part in a comparison: the valid ones of a group of which at least
    `min_share`, and never fewer than FEWEST_COMPARED, are valid.

    A mean over few of a group's images says more of which scores were lost than of the images.
    """
    _, index = torch.unique(group_ids, return_inverse=True)
    size = _sum_by_group(torch.ones_like(index, dtype=torch.float64), index)
    scored = _sum_by_group(valid.double(), index)
    # 0.55 of 20 is a little more than 11 in floating point.
    enough = (scored >= min_share * size - 1e-9) & (scored >= FEWEST_COMPARED)
    return valid & enough[index]


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    valid: Tensor,
    std: Std = "group",
    trim: float = 0.0,
    ddof: int = 0,
) -> Tensor:
    """(r - mean of its group) / (std + EPSILON), float64 inside, float32 out: [N].

    rewards [N]; group_ids [N] integers; valid [N] bool, false where the score is missing: those
    get advantage 0. A group with one valid member has advantage 0.

    Args:
        std: of the group, of all valid rewards of the batch, or none (Dr.GRPO).
        trim: share of the lowest rewards of a group that its mean and std leave out.
        ddof: what is taken off the number of rewards that a variance is divided by: 0 or 1.
    """
    values = torch.where(valid, rewards.double(), 0.0)
    _, index = torch.unique(group_ids, return_inverse=True)
    counted = untrimmed(values, index, valid, trim)
    count = _sum_by_group(counted.double(), index).clamp(min=1)
    mean = _sum_by_group(torch.where(counted, values, 0.0), index) / count
    centred = torch.where(valid, values - mean[index], 0.0)
    if std == "group":
        square = torch.where(counted, centred**2, 0.0)
        divisor = (count - ddof).clamp(min=1)
        spread = (_sum_by_group(square, index) / divisor).sqrt()[index] + EPSILON
    elif std == "batch":
        known = values[counted]
        enough = len(known) > ddof
        spread = known.std(correction=ddof) + EPSILON if enough else torch.tensor(1.0)
    else:
        spread = torch.tensor(1.0)
    return (centred / spread).float()


def untrimmed(values: Tensor, index: Tensor, valid: Tensor, trim: float) -> Tensor:
    """Valid members [N] without the floor(trim n) lowest of each group; ties go by position."""
    kept = valid.clone()
    if trim > 0:
        for group in torch.unique(index):
            members = ((index == group) & valid).nonzero().flatten()
            lowest = values[members].argsort(stable=True)[: int(trim * len(members))]
            kept[members[lowest]] = False
    return kept


def each_reward_advantages(
    rewards: Mapping[str, Tensor],
    weights: Mapping[str, float | Tensor],
    group_ids: Tensor,
    valid: Tensor,
    std: Std = "group",
    trim: float = 0.0,
    ddof: int = 0,
) -> Tensor:
    """Every reward made relative to its group on its own, then summed by weight: [N].

    So a reward with a wide scale does not drown one with a narrow scale. Arguments as
    `each_reward_parts` has them.
    """
    parts = each_reward_parts(rewards, weights, group_ids, valid, std, trim, ddof)
    return sum(parts.values(), torch.zeros(valid.shape, dtype=torch.float64)).float()


def each_reward_parts(
    rewards: Mapping[str, Tensor],
    weights: Mapping[str, float | Tensor],
    group_ids: Tensor,
    valid: Tensor,
    std: Std = "group",
    trim: float = 0.0,
    ddof: int = 0,
) -> dict[str, Tensor]:
    """What each reward, made relative to its group on its own, adds to the sum: [N], float64.

    Args:
        weights: by reward, a number, or [N] where samples of different data sets weigh it
            differently. A reward takes no part in samples where its weight is 0, whatever its
            value there.
    """
    parts = {}
    for name, weight in _by_sample(weights, valid).items():
        counts = valid & (weight != 0)
        parts[name] = torch.zeros(valid.shape, dtype=torch.float64)
        if counts.any():
            alone = group_advantages(rewards[name], group_ids, counts, std, trim, ddof).double()
            parts[name] = torch.where(counts, weight * alone, 0.0)
    return parts


def weight_shares(weights: Mapping[str, float | Tensor], valid: Tensor) -> dict[str, Tensor]:
    """Each sample's weights divided by the sum of their sizes (MixGRPO's form): [N] a reward."""
    by_sample = _by_sample(weights, valid)
    total = torch.stack([weight.abs() for weight in by_sample.values()]).sum(0)
    return {name: torch.where(total > 0, weight / total, 0.0) for name, weight in by_sample.items()}


def whitened(advantages: Tensor, valid: Tensor, ddof: int = 0) -> Tensor:
    """Mean 0 and std 1 over the valid ones of the batch (the second step of GDPO): [N]."""
    known = advantages[valid].double()
    if len(known) <= ddof:
        return torch.zeros_like(advantages)
    scaled = (advantages.double() - known.mean()) / (known.std(correction=ddof) + EPSILON)
    return torch.where(valid, scaled, 0.0).float()


def _by_sample(weights: Mapping[str, float | Tensor], valid: Tensor) -> dict[str, Tensor]:
    return {
        name: torch.as_tensor(weight, dtype=torch.float64).expand(valid.shape)
        for name, weight in weights.items()
    }


def extremes(advantages: Tensor, group_ids: Tensor, valid: Tensor, keep: int) -> Tensor:
    """Which samples [N] are among the keep / 2 best or worst of their group's valid ones.

    A group with no more than `keep` valid ones keeps all. Ties go by position.
    """
    kept = torch.zeros_like(valid)
    for group in torch.unique(group_ids):
        members = ((group_ids == group) & valid).nonzero().flatten()
        order = members[advantages[members].argsort(stable=True)]
        if len(order) > keep:
            order = torch.cat([order[: keep // 2], order[-(keep // 2) :]])
        kept[order] = True
    return kept


def flat_groups(rewards: Tensor, group_ids: Tensor, valid: Tensor) -> Tensor:
    """Ids of the groups with valid rewards that are all equal: they teach nothing.

    Groups without any are not among them: other images would not be scored either.

    Args:
        rewards: what is compared: [N], or [N, R] where each reward is compared on its own.
    """
    flat = []
    for group in torch.unique(group_ids[valid]):
        members = rewards[(group_ids == group) & valid]
        if bool((members == members[0]).all()):
            flat.append(group)
    return torch.stack(flat) if flat else group_ids.new_empty(0)


def zero_std_share(rewards: Tensor, group_ids: Tensor, valid: Tensor) -> float:
    """Share of groups that teach nothing: flat ones, and those without a valid reward.

    Args:
        rewards: as `flat_groups` has them.
        valid: [N], as `comparable` has it, so that groups with too few scores count too.
    """
    groups = len(torch.unique(group_ids))
    unscored = groups - len(torch.unique(group_ids[valid]))
    return (len(flat_groups(rewards, group_ids, valid)) + unscored) / max(groups, 1)


def advantage_shares(
    parts: Mapping[str, Tensor], group_ids: Tensor, valid: Tensor
) -> dict[str, float]:
    """How much of what distinguishes a group's images each reward explains.

    cov(part, total) / var(total) over the valid samples, each centred on the mean of its group;
    total is the sum of the parts. The shares sum to 1, and one is below 0 where its reward works
    against the others. All are 0 where no group's total varies.

    Args:
        parts: reward name -> what it adds to what is compared, such as weight times score: [N],
            finite where valid.
    """
    if not parts:
        return {}
    _, index = torch.unique(group_ids, return_inverse=True)
    count = _sum_by_group(valid.double(), index).clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        known = torch.where(valid, values.double(), 0.0)
        mean = _sum_by_group(known, index) / count
        return torch.where(valid, known - mean[index], 0.0)

    relative = {name: centred(values) for name, values in parts.items()}
    total = torch.stack(list(relative.values())).sum(0)
    variance = float((total**2).sum())
    # Equal totals differ by the rounding of their means, and nothing is a share of that.
    largest = max(
        float(torch.where(valid, one.double(), 0.0).abs().max()) for one in parts.values()
    )
    if variance <= len(total) * (ROUNDING * largest) ** 2:
        return dict.fromkeys(parts, 0.0)
    return {name: float((one * total).sum()) / variance for name, one in relative.items()}


def _sum_by_group(values: Tensor, index: Tensor) -> Tensor:
    total = torch.zeros(int(index.max()) + 1 if len(index) else 0, dtype=values.dtype)
    return total.index_add_(0, index, values)
