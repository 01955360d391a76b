"""Processes, machines and devices."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from atelier.config.sections.base import (
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    operational,
)
from atelier.config.sections.gpu_waiting import GpuWaitConfig

LOOPBACK = "127.0.0.1"


LAST_MEETING_PORT = 65534  # the one after it is wanted, too


class Shares(NamedTuple):
    """How many ranks sample, and how many train."""

    sampling: int
    training: int


class LaunchConfig(Section):
    """How the trainer process is started."""

    processes: PositiveInt = operational(1, "Ranks of a node (torchrun --nproc-per-node).")
    rollout_processes: NonNegativeInt = operational(
        0,
        "How many of `processes` only sample; the others only train, on what was sampled during "
        "the step before (train.one_step_off). 0: each does both (docs/rewards.md).",
    )
    nodes: PositiveInt = operational(
        1, "Machines that train together, with `processes` ranks each (docs/many-machines.md)."
    )
    node_rank: NonNegativeInt = operational(
        0, "Which of the nodes this one is: 0 has the run, the others help it train."
    )
    master_address: Annotated[str, Field(min_length=1)] = operational(
        LOOPBACK, "Name or address of node 0, as the other nodes reach it."
    )
    master_port: Annotated[int, Field(ge=1, le=LAST_MEETING_PORT)] = operational(
        29700, "Port of node 0 where the nodes meet; their torchruns do at the one after it."
    )
    join_limit: PositiveFloat = operational(
        1800.0, "Seconds that node 0 waits for the others before it stops, resumable."
    )
    launcher: list[str] = operational(
        [],
        "Program and arguments with which node 0 starts the other nodes, such as [srun, "
        "--nodes=3, --ntasks-per-node=1]; Atelier's own command follows. Default: they are started "
        "by hand.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the ranks compute.")
    engine: Literal["ddp", "deepspeed"] = Field("ddp", description="Distributed engine.")
    zero_stage: Literal[2, 3] = Field(2, description="DeepSpeed ZeRO stage.")
    zero_tuning: Literal["general", "sd3"] = Field(
        "general",
        description="What ZeRO-3 gathers and reduces at a time: 50 million parameters; sd3: a "
        "block of a diffusion transformer of 2 billion, whose vectors are never shared out.",
    )
    offload: bool = Field(
        False, description="Keep the optimizer in main memory and step it on the CPU (ZeRO-3)."
    )
    threads: PositiveInt = Field(
        2,
        description="CPU threads of a node's ranks together; fixed, because it can change sums.",
    )
    deterministic: bool = Field(
        True,
        description="Sum in a fixed order, so that a run repeats, and resumes, bit for bit. On a "
        "GPU this costs some of the backward pass of attention.",
    )
    max_restarts: NonNegativeInt = operational(2, "Crashes after which a stage gives up.")
    wait_for_gpus: GpuWaitConfig = operational(
        GpuWaitConfig(), "Whether to wait for GPUs that other programs use."
    )

    @property
    def ranks(self) -> int:
        """Of all nodes together."""
        return self.nodes * self.processes

    def shares(self, ranks: int) -> Shares:
        """Who does what of so many ranks."""
        apart = self.rollout_processes
        return Shares(apart, ranks - apart) if apart else Shares(ranks, ranks)

    @property
    def threads_of_a_rank(self) -> int:
        """CPU threads of one rank, and of what computes as one rank does."""
        return max(1, self.threads // self.processes)
