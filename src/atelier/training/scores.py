"""The scores of a whole step, gathered from all ranks and put in the order of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atelier.algorithms.advantages import advantage_shares, comparable, zero_std_share
from atelier.policies.base import Sample
from atelier.rewards.reward_set import ScoreTable
from atelier.training.distributed import World


@dataclass(frozen=True)
class StepScores:
    """One entry a sample, by sample index [N]: total [N] (NaN where not valid)."""

    index: Tensor
    total: Tensor
    valid: Tensor
    group_ids: Tensor
    values: dict[str, Tensor]
    first_reason: str | None

    def replaced_by(self, other: StepScores) -> StepScores:
        """The same with the entries of `other`, whose samples are some of these, in their place."""
        where = torch.searchsorted(self.index, other.index)

        def put(ours: Tensor, theirs: Tensor) -> Tensor:
            return ours.index_copy(0, where, theirs)

        return StepScores(
            self.index,
            put(self.total, other.total),
            put(self.valid, other.valid),
            put(self.group_ids, other.group_ids),
            {name: put(value, other.values[name]) for name, value in self.values.items()},
            self.first_reason or other.first_reason,
        )

    def summary(self) -> dict[str, float]:
        """Means and spreads over what is present; a missing score enters no statistic."""
        present = self.total[self.valid].double()
        result = {
            "reward/mean": float(present.mean()),
            "reward/std": float(present.std(correction=0)),
            "reward/valid_share": float(self.valid.float().mean()),
        }
        for name, values in self.values.items():
            known = values[~values.isnan()].double()
            if len(known):
                result[f"reward/{name}/mean"] = float(known.mean())
        return result


def comparison_metrics(
    scores: StepScores, weights: Mapping[str, float | Tensor], min_valid_in_group: float
) -> dict[str, float]:
    """What the groups' comparison rests on: groups that teach nothing, among them those with too
    few scores, and what share of the advantage each reward explains.

    weights: by reward, of all images or of each [N]; with 0 a score may be missing.
    """
    groups = scores.group_ids
    compared = comparable(groups, scores.valid, min_valid_in_group)
    count = len(groups.unique())
    parts = {name: _weighted(scores.values[name], weight) for name, weight in weights.items()}
    shares = advantage_shares(parts, groups, compared)
    return {
        "advantage/zero_std_share": zero_std_share(scores.total, groups, compared),
        "advantage/sparse_group_share": 1 - len(groups[compared].unique()) / max(count, 1),
        **{f"reward/{name}/advantage_share": share for name, share in shares.items()},
    }


def _weighted(values: Tensor, weight: float | Tensor) -> Tensor:
    """Weight times score [N], 0 where the weight is, even of a score that is missing."""
    weights = torch.as_tensor(weight, dtype=torch.float64).expand(len(values))
    return torch.where(weights != 0, weights * values.double(), 0.0)


def gather_scores(world: World, samples: Sequence[Sample], table: ScoreTable) -> StepScores:
    """Collective: every rank ends with the scores of all samples, so advantages are equal."""
    mine = {
        "index": np.array([one.index for one in samples]),
        "group": np.array([one.group_id for one in samples]),
        "total": table.total,
        "valid": table.valid,
        **{f"value/{name}": values for name, values in table.values.items()},
    }
    parts = world.gather((mine, next((reason for reason in table.reasons if reason), None)))
    whole = {name: np.concatenate([part[name] for part, _ in parts]) for name in mine}
    order = np.argsort(whole["index"])
    sorted_ = {name: torch.from_numpy(values[order]) for name, values in whole.items()}
    return StepScores(
        index=sorted_.pop("index"),
        total=sorted_.pop("total").float(),
        valid=sorted_.pop("valid").bool(),
        group_ids=sorted_.pop("group"),
        values={name.removeprefix("value/"): values for name, values in sorted_.items()},
        first_reason=next((reason for _, reason in parts if reason), None),
    )
