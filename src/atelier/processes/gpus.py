"""Which GPUs of this machine a process computes on: none that another run has claimed.

Runs know nothing of each other: they may come from two Prefect servers, from `atelier run` or from
`dvc repro`. So a GPU is a lock file, held until its process ends, and CUDA_VISIBLE_DEVICES names
the ones that were free. The locks are the checkout's, in a folder a machine: nodes may share a
checkout. What other programs use is looked at where a run is to wait for it
(launch.wait_for_gpus).
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from atelier.config.paths import repository_root
from atelier.config.sections.gpu_waiting import GpuWaitConfig
from atelier.errors import PlanError, Stopped
from atelier.processes.gpu_readings import Reading, free_gpus, read_gpus

VISIBLE = "CUDA_VISIBLE_DEVICES"
REMIND_EVERY_SECONDS = 300.0

logger = logging.getLogger(__name__)

# File descriptors, open as long as the process lives: CUDA cannot move to another GPU once started.
_claimed: list[int] = []


def visible_gpus() -> list[str]:
    """The GPUs that CUDA may use, as CUDA_VISIBLE_DEVICES names them; empty without any.

    Counted without starting CUDA in this process, which would fix its choice.
    """
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return (named or [str(index) for index in range(count)])[:count]


def claim_gpus(
    count: int,
    folder: Path | None = None,
    wait: GpuWaitConfig | None = None,
    read: Callable[[Sequence[str]], list[Reading]] = read_gpus,
) -> list[str]:
    """Claim `count` GPUs for this process and its children, for as long as it lives.

    Waits while other runs hold them and, with `wait`, while other programs use them; all or none
    are taken. Once claimed, the same ones are kept. Nothing happens on a machine without GPUs.

    Args:
        folder: where the locks lie; default: .atelier/gpus/<this machine> of the repository.
        wait: which GPUs count as used by other programs, and how long to wait; None or not
            enabled: none do.
        read: what uses GPUs.

    Returns:
        What CUDA_VISIBLE_DEVICES is set to.

    Raises:
        PlanError: this machine shows fewer GPUs.
        ConfigError: what uses them cannot be read.
        Stopped: they were not free in time.
    """
    gpus = visible_gpus()
    if not gpus or len(_claimed) >= count:
        return gpus
    if count > len(gpus):
        raise PlanError(
            f"launch.processes: {count} GPUs are wanted, one a rank, those that paint "
            f"(rollout.environment.gpus) and those of managed servers (server.gpus), and "
            f"{len(gpus)} are visible; lower launch.processes, let servers share "
            "(server.share_gpus) or set launch.device=cpu"
        )
    folder = folder or repository_root() / ".atelier" / "gpus" / socket.gethostname()
    folder.mkdir(parents=True, exist_ok=True)
    wait = wait if wait is not None and wait.enabled else None
    told = _Told(count, len(gpus))
    while True:
        readings = read(gpus) if wait else []
        free = free_gpus(readings, wait) if wait else gpus
        if (taken := _take(free, count, folder)) is not None:
            break
        told.say([one for one in readings if one.gpu not in free])
        left = wait.limit - told.seconds if wait and wait.limit is not None else math.inf
        if wait and left <= 0:
            raise Stopped(
                f"launch.wait_for_gpus.limit: {count} GPUs were not free within {wait.limit:g} s; "
                f"{told.text}; resume the run when they are"
            )
        # Two that want many must not collide for ever. The last look is when the limit is reached.
        time.sleep(min((wait.every if wait else 1.0) * random.uniform(0.5, 1.5), left))
    _claimed.extend(taken.values())
    os.environ[VISIBLE] = ",".join(taken)
    return list(taken)


class _Told:
    """Says what is waited for: at first, when others compute, and now and then."""

    def __init__(self, wanted: int, there: int) -> None:
        self._wanted = f"{wanted} of {there} GPUs"
        self._began = time.monotonic()
        self._said_at = -math.inf
        self._who: object = None
        self.text = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, busy: Sequence[Reading]) -> None:
        who = [(one.gpu, one.pids) for one in busy]
        self.text = "; ".join(map(str, busy)) or "other runs have the rest"
        if who != self._who or time.monotonic() - self._said_at > REMIND_EVERY_SECONDS:
            self._who, self._said_at = who, time.monotonic()
            logger.info("waiting for %s: %s", self._wanted, self.text)


def _take(gpus: Sequence[str], count: int, folder: Path) -> dict[str, int] | None:
    """Lock the first `count` free GPUs, or none at all."""
    taken: dict[str, int] = {}
    for gpu in gpus:
        if len(taken) == count:
            break
        lock = os.open(folder / f"{gpu.replace('/', '-')}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        taken[gpu] = lock
    if len(taken) == count:
        return taken
    for lock in taken.values():
        os.close(lock)
    return None
