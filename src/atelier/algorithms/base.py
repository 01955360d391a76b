"""What the loop asks of an algorithm: advantages of rewards, and a loss of replayed actions.

The same algorithms serve flow policies and token policies: what differs lies in the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from atelier.algorithms.kl import Statistics
from atelier.errors import Stopped


class Replayed(Protocol):
    """What a policy's replay offers a loss."""

    @property
    def log_prob(self) -> Tensor | None: ...  # [B, A]

    @property
    def statistics(self) -> Statistics: ...  # [B, A, ...]

    @property
    def weight(self) -> Tensor | None: ...  # [B, A]


class Scored(Protocol):
    """The rewards of a step's N samples, in the order of their indices."""

    @property
    def total(self) -> Tensor: ...  # [N], weighted sum

    @property
    def values(self) -> Mapping[str, Tensor]: ...  # [N] each reward, NaN where missing

    @property
    def weights(self) -> Mapping[str, Tensor]: ...  # [N] each reward, where data sets set them

    @property
    def group_ids(self) -> Tensor: ...  # [N]

    @property
    def valid(self) -> Tensor: ...  # [N]


@dataclass(frozen=True)
class Advantages:
    """values [N, A], or [N, 1] where all actions share them; kept [N]: who is trained on."""

    values: Tensor
    kept: Tensor

    def of(self, rows: Tensor, actions: slice) -> Tensor:
        """Those of some samples' actions: [B, n] or [B, 1]."""
        values = self.values[rows]
        return values if values.shape[1] == 1 else values[:, actions]


@dataclass(frozen=True)
class LossTerms:
    """Of replayed actions [B, A].

    Attributes:
        loss: differentiated after weighting.
        drift: how far what is trained has moved from what sampled; 0 where it is the same.
        metrics: detached, to be averaged.
    """

    loss: Tensor
    drift: Tensor
    metrics: dict[str, Tensor]


class Algorithm(Protocol):
    """The algorithm of a run."""

    gap_name: str
    """What `gap` measures, in words."""

    gap_unit: str
    """What a gap is compared with, in words."""

    gap_causes: str
    """What usually makes one, in words."""

    @property
    def gap_scale(self) -> float:
        """What a gap is compared with."""
        ...

    @property
    def needs_reference(self) -> bool: ...

    @property
    def kl_in_loss(self) -> bool: ...

    @property
    def kl_in_reward(self) -> bool: ...

    def kl(self, replay: Replayed) -> Tensor:
        """Distance of replayed actions to the reference: [B, A]."""
        ...

    def advantages(self, scored: Scored, distances: Tensor | None = None) -> Advantages:
        """Of the whole step's samples, clamped.

        Args:
            distances: to the reference, of every action [N, A], where rewards take it into account.
        """
        ...

    def loss(
        self,
        replay: Replayed,
        old_log_prob: Tensor | None,
        advantages: Tensor,
        truth: Tensor | None = None,
        trained: Tensor | None = None,
    ) -> LossTerms:
        """Of replayed actions.

        Args:
            old_log_prob: [B, A], from when they were sampled, if they have any.
            advantages: [B, A] or [B, 1].
            truth: [B] bool, which samples are ground truth and not the policy's; None for none.
            trained: [B, A], which actions are trained, 1 or 0; None for all.
        """
        ...

    def gap(self, drift: Tensor) -> dict[str, float]:
        """Mean, 99th percentile and maximum of the drift of many actions, in its unit."""
        ...

    def drift_metrics(self, drift: Tensor) -> dict[str, float]:
        """What the curves show of it."""
        ...

    @property
    def keeps_behaviour(self) -> bool:
        """Whether images are sampled by a policy of its own, a slow copy of the trained one."""
        ...

    def behaviour_decay(self, updates: int) -> float:
        """How much of that policy stays after a training step, the run's updates so far given."""
        ...


def spread(values: Tensor) -> dict[str, float]:
    """Mean, 99th percentile and maximum.

    Raises:
        Stopped: there are no values.
    """
    if not values.numel():
        raise Stopped(
            "no action of this step can be compared with its replay: all log-probabilities are "
            "missing or NaN. The policy's weights are probably no numbers any more; resume from an "
            "earlier checkpoint"
        )
    return {
        "mean": float(values.mean()),
        "p99": float(values.quantile(0.99)),
        "max": float(values.max()),
    }
