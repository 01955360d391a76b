"""Slots of Prefect's global concurrency limits: one job a GPU, one writer of DVC's files.

A slot is a lease that the holder renews; it falls free a minute after its holder died, or at once
when a reconciliation finds the holder dead. Where a limit does not exist (a temporary server),
nothing waits. The limit `gpu` is the queue that people see; which GPU a run gets is decided below
Prefect (atelier.processes.gpus), so runs without a common server keep apart, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import ConcurrencyLeaseHolder, FlowRun
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from atelier.background import BackgroundLoop
from atelier.config.placement import gpus_wanted
from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.errors import PlanError
from atelier.processes.gpus import visible_gpus
from atelier.tracking.run_directory import RunDirectory
from tasks.done import are_done
from tasks.identity import LEASE
from tasks.server import UNANSWERED, ask_server, until_answered

GPU = "gpu"
LEASE_SECONDS = 60.0  # the shortest that the server grants
RENEW_EVERY_SECONDS = 20.0
TRY_EVERY_SECONDS = 2.0
REMIND_EVERY_SECONDS = 300.0
TAKEN, GONE = 423, 410

logger = logging.getLogger("atelier.flow")


def require_gpu_slots(run: Path) -> None:
    """Refuse a run that the limit `gpu` will never admit.

    Raises:
        PlanError: launch.processes is more than the limit, or there is no GPU at all.
    """
    config = _config(run)
    if config.launch.device == "cuda" and not visible_gpus():
        raise PlanError(
            "launch.device: cuda, but this machine has no GPU that the driver or "
            "CUDA_VISIBLE_DEVICES shows; set launch.device=auto, or run it where there is one"
        )
    count, limit = slots_needed(config), until_answered(lambda: _limit(GPU))
    if limit is not None and count > limit.limit:
        raise PlanError(
            f"launch.processes: {count} GPUs are wanted, one a rank, those that paint and those of "
            f"managed servers, and the concurrency limit '{GPU}' is {limit.limit}; lower "
            f"launch.processes, or raise the limit: prefect global-concurrency-limit update {GPU} "
            f"--limit {count}"
        )


@contextmanager
def gpu_slots(
    run: Path, stages: Sequence[str], on_wait: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Hold a slot of `gpu` for each rank that wants a GPU, after waiting for them.

    Nothing is held or waited for where all `stages` that follow are done.

    Raises:
        PlanError: as `require_gpu_slots`.
    """
    require_gpu_slots(run)
    count = 0 if are_done(run, stages) else slots_needed(_config(run))
    with slot(GPU, count, on_wait) if count else nullcontext():
        yield


def slots_needed(config: RunConfig) -> int:
    """GPUs that a run computes on. A machine without any has one slot as a stand-in
    for its CPU."""
    if config.launch.device != "cuda" and not visible_gpus():
        return 1
    return gpus_wanted(config)


def _config(run: Path) -> RunConfig:
    return load_stage_config(RunDirectory(run).config("train"))


@contextmanager
def slot(name: str, count: int = 1, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold `count` slots of a limit, after waiting for them as long as it takes.

    To be entered in the flow's main thread, where a cancel ends the waiting.

    Args:
        on_wait: told in a sentence what is waited for, and told "" when it is over.
    """
    lease = _acquire(name, count, on_wait)
    if lease is None:
        yield
        return
    try:
        with _Keeper(name, count, lease) as keeper:
            yield
    finally:
        _release(name, keeper.lease)


def release_leases(client: SyncPrefectClient, run: FlowRun) -> None:
    """Give back what a dead attempt of a flow run held."""
    for label, lease in run.labels.items():
        if label.startswith(LEASE) and lease:
            client.release_concurrency_slots_with_lease(UUID(str(lease)))
            client.update_flow_run_labels(run.id, {label: ""})


def _acquire(name: str, count: int, on_wait: Callable[[str], None] | None) -> UUID | None:
    """The lease; None where the limit does not exist. Waits while all slots are taken."""
    said = None
    while True:
        lease, taken = until_answered(lambda: _try(name, count))
        if not taken:
            if said is not None and on_wait:
                on_wait("")
            return lease
        if said is None or time.monotonic() - said > REMIND_EVERY_SECONDS:
            said = time.monotonic()
            text = until_answered(lambda: _waiting_for(name, count))
            logger.info(text)
            if on_wait:
                on_wait(text)
        time.sleep(TRY_EVERY_SECONDS)


def _try(name: str, count: int) -> tuple[UUID | None, bool]:
    """(lease or None, whether all slots are taken)."""
    holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(str(flow_run.id)))
    with ask_server() as client:
        try:
            answer = client.increment_concurrency_slots_with_lease(
                [name], count, "concurrency", LEASE_SECONDS, holder
            ).json()
        except httpx.HTTPStatusError as error:
            if error.response.status_code == TAKEN:
                return None, True
            raise
        if not answer["limits"]:
            return None, False
        lease = UUID(answer["lease_id"])
        client.update_flow_run_labels(holder.id, {LEASE + name: str(lease)})
        return lease, False


def _release(name: str, lease: UUID) -> None:
    try:
        with ask_server() as client:
            client.release_concurrency_slots_with_lease(lease)
            client.update_flow_run_labels(UUID(str(flow_run.id)), {LEASE + name: ""})
    except UNANSWERED as error:
        logger.warning("the slot of %r falls free by itself in a minute: %s", name, error)


def _limit(name: str) -> GlobalConcurrencyLimitResponse | None:
    with ask_server() as client:
        try:
            return client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            return None


def _waiting_for(name: str, count: int) -> str:
    limit = _limit(name)
    wanted = f"{count} slot{'s' if count > 1 else ''} of '{name}'"
    if limit is None:
        return f"waiting for {wanted}"
    return f"waiting for {wanted}: {limit.active_slots} of {limit.limit} taken by other runs"


class _Keeper(BackgroundLoop):
    """Renews a lease; takes a new one where it expired while the server was away."""

    def __init__(self, name: str, count: int, lease: UUID) -> None:
        super().__init__(f"{name}-slot", self._renew, RENEW_EVERY_SECONDS)
        self.lease = lease
        self._name = name
        self._count = count

    def _renew(self) -> float:
        try:
            with ask_server() as client:
                client.renew_concurrency_lease(self.lease, LEASE_SECONDS)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == GONE:
                self._take_again()
        except UNANSWERED:
            pass  # asked again in time: a lease outlives two renewals that failed
        return RENEW_EVERY_SECONDS

    def _take_again(self) -> None:
        if self.is_left:  # and what it held is given back
            return
        try:
            lease, _ = _try(self._name, self._count)
        except UNANSWERED:
            return
        if lease is not None:
            self.lease = lease
