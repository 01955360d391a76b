import os
import subprocess
import sys
import time
import types

from atelier.processes.usage import Usage
from atelier.stages import system_samples
from atelier.stages.system_samples import SystemSamples
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory

BUSY = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"


def test_a_tree_is_sampled_with_its_children_and_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(system_samples, "FIRST_AFTER_SECONDS", 1.0)
    monkeypatch.setattr(system_samples, "EVERY_SECONDS", 0.5)
    run = RunDirectory(tmp_path)
    with subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) as process:
        with SystemSamples(run, process.pid, ""):
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and len(samples(run)) < 3:
                time.sleep(0.1)
        for child in Usage(process.pid)._living():
            child[0].kill()
    found = samples(run)
    assert len(found) >= 3
    assert all(one["processes"] == 2 for one in found)
    assert all(one["memory_usage_megabytes"] > 5 for one in found)
    assert max(one["cpu_utilization_percentage"] for one in found) > 10
    assert not any("gpu" in name for one in found for name in one), "none is its own"
    assert Usage(process.pid).sample() == {}, "gone"


def samples(run):
    return [record for _, record in read_json_lines(run.system)]


class FakeNvml(types.SimpleNamespace):
    """Two GPUs, of which the second answers no question about its load."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetUtilizationRates(self, handle):
        if handle == 1:
            raise self.NVMLError
        return types.SimpleNamespace(gpu=40 + handle)


def test_own_gpus_are_sampled_by_number_and_by_name(monkeypatch):
    nvml = FakeNvml(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda name: 2,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=handle * 1024**2),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = Usage(os.getpid(), "3,1,GPU-ab").sample()
    assert {name: value for name, value in found.items() if name.startswith("gpu")} == {
        "gpu_0_utilization_percentage": 43.0,
        "gpu_0_memory_usage_megabytes": 3.0,
        "gpu_2_utilization_percentage": 42.0,
        "gpu_2_memory_usage_megabytes": 2.0,
    }


def test_without_the_library_no_gpu_is_sampled(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert not any("gpu" in name for name in Usage(os.getpid(), "0").sample())
