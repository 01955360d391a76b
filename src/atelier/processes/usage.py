"""What a process and its descendants use of the machine; of GPUs, only those that are theirs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psutil

from atelier.processes.gpu_readings import MEGABYTE, gpu_handle


class Usage:
    """Samples of a process tree, under the names that MLflow has for system metrics.

    Args:
        pid: the root of the tree, such as a guard.
        gpus: which are its own, as CUDA_VISIBLE_DEVICES names them; empty: none.
    """

    def __init__(self, pid: int, gpus: str = "") -> None:
        self._pid = pid
        self._gpus = _Gpus(gpus)
        self._cpu_seconds: dict[psutil.Process, float] = {}
        self._at = time.monotonic()

    def sample(self) -> dict[str, float]:
        """Usage now; CPU since the sample before. Empty when the process is gone.

        cpu_utilization_percentage: 100 is one core. memory_usage_megabytes: resident, pages that
        processes share counted for each. processes: how many. gpu_<n>_utilization_percentage,
        gpu_<n>_memory_usage_megabytes: of each GPU, where nvidia-ml-py is installed.
        """
        living = dict(self._living())
        if not living:
            return {}
        now = time.monotonic()
        spent = {process: cpu for process, (cpu, _) in living.items()}
        used = sum(cpu - self._cpu_seconds.get(process, 0.0) for process, cpu in spent.items())
        elapsed, self._at, self._cpu_seconds = now - self._at, now, spent
        return {
            "cpu_utilization_percentage": round(100 * max(0.0, used) / max(elapsed, 1e-3), 1),
            "memory_usage_megabytes": round(sum(rss for _, rss in living.values()) / MEGABYTE, 1),
            "processes": float(len(living)),
            **self._gpus.sample(),
        }

    def _living(self) -> Iterator[tuple[psutil.Process, tuple[float, int]]]:
        """Every process of the tree, with its CPU seconds and resident bytes."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._pid)
            for process in [root, *root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    with process.oneshot():
                        times, memory = process.cpu_times(), process.memory_info()
                    yield process, (times.user + times.system, memory.rss)


class _Gpus:
    """The GPUs named by a CUDA_VISIBLE_DEVICES; none where it is empty or NVML cannot be asked."""

    def __init__(self, visible: str) -> None:
        self._handles: dict[str, Any] = {}
        names = [name.strip() for name in visible.split(",") if name.strip()]
        if not names:
            return
        try:
            import pynvml
        except ImportError:
            return  # nvidia-ml-py is optional (pip install atelier-grpo[gpu])
        self._nvml = pynvml
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._handles = {name: gpu_handle(pynvml, name) for name in names}

    def sample(self) -> dict[str, float]:
        values: dict[str, float] = {}
        for number, handle in enumerate(self._handles.values()):
            with contextlib.suppress(self._nvml.NVMLError):
                rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                values[f"gpu_{number}_utilization_percentage"] = float(rates.gpu)
                values[f"gpu_{number}_memory_usage_megabytes"] = round(memory.used / MEGABYTE, 1)
        return values
