"""What uses a GPU, as the driver (NVML) says; and whether that leaves it free."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atelier.config.sections.gpu_waiting import GpuWaitConfig
from atelier.errors import ConfigError

MEGABYTE = 1024**2


@dataclass(frozen=True)
class Reading:
    """A GPU at one moment.

    Attributes:
        gpu: as CUDA_VISIBLE_DEVICES names it.
        megabytes: in use, without what the driver reserves.
        percent: of the time that it was busy; None where it does not say (parts of a GPU, MIG).
        pids: of the processes that compute on it.
    """

    gpu: str
    megabytes: float
    percent: float | None = None
    pids: tuple[int, ...] = ()

    def is_free(self, wait: GpuWaitConfig) -> bool:
        busy = self.percent is not None and self.percent >= wait.utilization
        return self.megabytes < wait.memory and not busy

    def __str__(self) -> str:
        who = f"pid {', '.join(map(str, self.pids))}" if self.pids else "of no process seen here"
        busy = "" if self.percent is None else f", {self.percent:.0f} %"
        return f"GPU {self.gpu}: {self.megabytes:.0f} MB{busy} ({who})"


def free_gpus(readings: Sequence[Reading], wait: GpuWaitConfig) -> list[str]:
    """Names of those that other programs leave alone, in their order."""
    return [one.gpu for one in readings if one.is_free(wait)]


def gpu_handle(nvml: Any, name: str) -> Any:
    """NVML's handle of a GPU that CUDA_VISIBLE_DEVICES names by number or UUID."""
    if name.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def read_gpus(gpus: Sequence[str]) -> list[Reading]:
    """What uses each of these GPUs now. Starts no CUDA.

    Raises:
        ConfigError: NVML is missing or does not answer.
    """
    mend = "or set launch.wait_for_gpus.enabled=false"
    try:
        import pynvml
    except ImportError as error:
        raise ConfigError(
            "launch.wait_for_gpus.enabled: what uses the GPUs cannot be read, because nvidia-ml-py "
            f"is not installed; pip install nvidia-ml-py, {mend}"
        ) from error
    try:
        pynvml.nvmlInit()
        return [_reading(pynvml, gpu) for gpu in gpus]
    except pynvml.NVMLError as error:
        raise ConfigError(
            f"launch.wait_for_gpus.enabled: the driver does not say what uses GPUs "
            f"{', '.join(gpus)} (NVML: {error}); mend it, {mend}"
        ) from error


def _reading(nvml: Any, gpu: str) -> Reading:
    handle = gpu_handle(nvml, gpu)
    # The first version counts what the driver reserves, some 600 MB of an idle H100, as used.
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    try:
        percent = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:
        percent = None
    pids = tuple(one.pid for one in processes if one.pid != os.getpid())
    return Reading(gpu, memory.used / MEGABYTE, percent, pids)
