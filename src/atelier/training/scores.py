"""The scores of a whole step, gathered from all ranks and put in the order of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from atelier.algorithms.advantages import advantage_shares, zero_std_share
from atelier.algorithms.comparison import Comparison
from atelier.policies.base import Sample
from atelier.rewards.reward_set import ScoreTable
from atelier.training.distributed import World

VALUE, WEIGHT = "value/", "weight/"  # before the name of a reward, among other tensors


@dataclass(frozen=True)
class StepScores:
    """One entry a sample, by sample index [N]: total [N] (NaN where not valid).

    group_ids [N] says which are compared: a sample's pool. `values` and `weights` are by reward; a
    value is NaN where it is missing or not asked for, and the weight 0 where the sample's data set
    does not name the reward.
    """

    index: Tensor
    total: Tensor
    valid: Tensor
    group_ids: Tensor
    values: dict[str, Tensor]
    first_reason: str | None
    weights: dict[str, Tensor] = field(default_factory=dict)

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
            {name: put(weight, other.weights[name]) for name, weight in self.weights.items()},
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


def comparison_metrics(scores: StepScores, comparison: Comparison) -> dict[str, float]:
    """What the comparison rests on: groups that teach nothing, among them those with too few
    scores, and what share of the advantage each reward explains. Images that are compared over a
    whole step are one group."""
    groups, comparable = comparison.groups(scores), comparison.comparable(scores)
    count = len(groups.unique())
    shares = advantage_shares(comparison.parts(scores), groups, comparable)
    flat = zero_std_share(comparison.compared(scores), groups, comparable)
    return {
        "advantage/zero_std_share": flat,
        "advantage/sparse_group_share": 1 - len(groups[comparable].unique()) / max(count, 1),
        **{f"reward/{name}/advantage_share": share for name, share in shares.items()},
    }


def truth_metrics(scores: StepScores, samples: Sequence[Sample]) -> dict[str, float]:
    """How much of a step is ground truth, and the mean reward of the images that were drawn:
    `reward/mean` is of both, and moves when less ground truth takes part.

    Args:
        samples: of the whole step, by their index.
    """
    given = torch.tensor([one.truth is not None for one in samples])[scores.index]
    drawn = scores.total[scores.valid & ~given].double()
    share = {"ground_truth/share": float(given.double().mean())}
    return share | ({"reward/drawn": float(drawn.mean())} if len(drawn) else {})


def gather_scores(
    world: World, places: Sequence[int], samples: Sequence[Sample], table: ScoreTable
) -> StepScores:
    """Collective: every rank ends with the scores of all images, so advantages are equal.

    Args:
        places: of this rank's images among all of the step; that of a sample's only image is the
            sample's index.
        samples: whose images they are.
    """
    mine = {
        "index": np.array(places, dtype=np.int64),
        "group": np.array([one.pool for one in samples], dtype=np.int64),
        "total": table.total,
        "valid": table.valid,
        **{f"{VALUE}{name}": values for name, values in table.values.items()},
        **{f"{WEIGHT}{name}": weights for name, weights in table.weights.items()},
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
        values=below(sorted_, VALUE),
        weights=below(sorted_, WEIGHT),
        first_reason=next((reason for _, reason in parts if reason), None),
    )


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """What is named by a prefix, without it."""
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
