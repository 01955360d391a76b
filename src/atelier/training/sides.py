"""Which ranks sample and which train: all do both, or each does one (launch.rollout_processes).

Where they are apart, ranks 0 ... n - 1 train, and the first of them writes what a run writes; the
others sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from atelier.config.sections.launch import LaunchConfig
from atelier.training.distributed import World, collective_timeout


@dataclass(frozen=True)
class Sides:
    """This rank's side.

    Attributes:
        everyone: all ranks.
        peers: those that do what this one does.
        samples, trains: what that is.
        weights: the first rank that trains and those that sample, which it sends weights to; None
            where each rank does both.
    """

    everyone: World
    peers: World
    samples: bool = True
    trains: bool = True
    weights: dist.ProcessGroup | None = None

    @property
    def apart(self) -> bool:
        return not (self.samples and self.trains)

    @property
    def asks_first(self) -> bool:
        """Whether this is the first of the ranks that sample, and ask for scores."""
        return self.samples and self.peers.is_main

    @property
    def training(self) -> Sequence[int]:
        """The ranks that train."""
        size = self.peers.size if self.trains else self.everyone.size - self.peers.size
        return range(size)


def take_sides(everyone: World, launch: LaunchConfig, patience_seconds: float = 0.0) -> Sides:
    """Collective: what launch.rollout_processes makes of this rank.

    Args:
        patience_seconds: see `join_world`.
    """
    if not launch.rollout_processes:
        return Sides(everyone, everyone)
    training = launch.shares(everyone.size).training
    learners, samplers = list(range(training)), list(range(training, everyone.size))
    # Every rank makes every group, whether it is in it or not, and in this order.
    timeout = collective_timeout(patience_seconds)
    ours, theirs = _group(learners, timeout), _group(samplers, timeout)
    weights = _group([learners[0], *samplers], timeout)
    trains = everyone.rank < training
    own, group = (learners, ours) if trains else (samplers, theirs)
    peers = World(everyone.rank - own[0], len(own), everyone.device, group=group)
    return Sides(everyone, peers, samples=not trains, trains=trains, weights=weights)


def _group(ranks: list[int], timeout: timedelta) -> dist.ProcessGroup | None:
    """Of these ranks; None on the others."""
    group = dist.new_group(ranks, timeout=timeout)
    return group if isinstance(group, dist.ProcessGroup) else None
