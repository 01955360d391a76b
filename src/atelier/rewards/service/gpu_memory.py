"""GPU memory for /metrics, without torch where no reward uses it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class GpuMemory(Collector):
    """Bytes that this process holds on each GPU, through torch.

    Nothing is shown while torch is not imported, or CUDA is not in use: asking would cost seconds
    and some hundred megabytes of GPU memory.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        cuda = getattr(sys.modules.get("torch"), "cuda", None)  # absent while torch is imported
        if cuda is None or not cuda.is_initialized():
            return
        held = GaugeMetricFamily(
            "atelier_reward_gpu_memory_bytes",
            "Bytes that this process holds on a GPU, through torch.",
            labels=["device"],
        )
        for device in range(cuda.device_count()):
            held.add_metric([str(device)], cuda.memory_reserved(device))
        yield held
