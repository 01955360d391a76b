"""Which rank this process is, and the few collectives the loop needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from atelier.config.sections.launch import LaunchConfig
from atelier.errors import AtelierError, ConfigError

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
LONGEST_PATIENCE = 30 * 86400.0  # seconds; a timedelta holds no more than so many years


@dataclass(frozen=True)
class World:
    """This process's place among ranks, and its device.

    Attributes:
        group: these ranks, where they are not all.
    """

    rank: int
    size: int
    device: torch.device
    group: dist.ProcessGroup | None = field(default=None, kw_only=True)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value (picklable, between our own processes only), in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def raise_together(self, error: AtelierError | None) -> None:
        """Collective: where a rank has failed, every rank raises its error: none waits for it."""
        for one in self.gather(error):
            if one is not None:
                raise one

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Collective: what a rank could not do inside, every rank raises behind it. Inside, ranks
        do not talk to each other."""
        error = None
        try:
            yield
        except AtelierError as failure:
            error = failure
        self.raise_together(error)

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self.group)


@contextmanager
def join_world(launch: LaunchConfig, patience_seconds: float = 0.0) -> Iterator[World]:
    """Join the process group torchrun describes; one process without torchrun is a world of one.

    Args:
        patience_seconds: for how long a rank may have to wait for one that waits for others; a
            collective ends with an error half an hour after that.

    CPU threads are fixed to launch.threads shared among a node's ranks: their number can change the
    order of sums, so it is part of what makes a run repeatable.
    """
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    device = _device(launch, local_rank)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    torch.set_num_threads(max(1, launch.threads // here))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # device_id binds NCCL at once, so a wrong card fails here and not in the first step.
    bound = device if device.type == "cuda" else None
    backend = "nccl" if bound else "gloo"
    if size > 1 or "RANK" in os.environ:
        timeout = collective_timeout(patience_seconds)
        dist.init_process_group(backend, device_id=bound, timeout=timeout)
    elif launch.engine == "deepspeed":
        # DeepSpeed wants a process group for one process too; a store in memory needs no port.
        store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=bound)
    try:
        yield World(rank, size, device)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def collective_timeout(patience_seconds: float) -> timedelta:
    """After which a rank that waits for others gives up; see `join_world`."""
    return COLLECTIVE_TIMEOUT + timedelta(seconds=min(patience_seconds, LONGEST_PATIENCE))


def _device(launch: LaunchConfig, local_rank: int) -> torch.device:
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if launch.device == "cpu" or (launch.device == "auto" and not available):
        return torch.device("cpu")
    if local_rank >= available:
        raise ConfigError(
            f"launch.processes: rank {local_rank} has no GPU of its own, {available} visible; "
            "lower launch.processes or set launch.device=cpu"
        )
    return torch.device("cuda", local_rank)
