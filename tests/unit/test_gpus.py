import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atelier.config.digest import stage_digest
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.sections.gpu_waiting import GpuWaitConfig
from atelier.errors import ConfigError, PlanError, Stopped
from atelier.processes import gpus
from atelier.processes.gpu_readings import Reading, free_gpus, read_gpus
from tests.support.patience import PATIENCE


@pytest.fixture
def four(monkeypatch):
    """A machine with four GPUs, on which this process has claimed none yet."""
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.setattr(gpus, "_claimed", [])
    monkeypatch.setenv(gpus.VISIBLE, "")


def test_what_another_process_holds_is_left_alone(four, tmp_path):
    others = gpus._take(["0", "2"], 2, tmp_path)
    assert others is not None
    assert gpus.claim_gpus(2, tmp_path) == ["1", "3"]
    assert os.environ[gpus.VISIBLE] == "1,3"


def test_a_claim_is_kept_and_not_made_twice(four, tmp_path):
    gpus.claim_gpus(2, tmp_path)
    gpus.claim_gpus(2, tmp_path)
    assert gpus._take(["2", "3"], 2, tmp_path) is not None


def test_all_or_none_are_taken(tmp_path):
    assert gpus._take(["0", "1"], 2, tmp_path) is not None
    assert gpus._take(["0", "1", "2"], 2, tmp_path) is None
    assert gpus._take(["2"], 1, tmp_path) is not None, "a vain attempt holds nothing"


def test_a_claim_waits_until_there_are_enough(four, tmp_path, monkeypatch):
    others = gpus._take(["0", "1", "2"], 3, tmp_path)
    waited = []

    def others_end(seconds):
        waited.append(seconds)
        for lock in others.values():
            os.close(lock)

    monkeypatch.setattr(gpus.time, "sleep", others_end)
    assert gpus.claim_gpus(2, tmp_path) == ["0", "1"]
    assert len(waited) == 1


def test_more_than_there_are_is_refused(four, tmp_path):
    with pytest.raises(PlanError, match=r"launch\.processes: 5 GPUs .* 4 are visible"):
        gpus.claim_gpus(5, tmp_path)


def test_a_machine_without_gpus_has_nothing_to_claim(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "visible_gpus", list)
    assert gpus.claim_gpus(8, tmp_path) == []


# Waiting for what other programs use ------------------------------------------------------------

WAIT = GpuWaitConfig(enabled=True, every=1.0)
IDLE = [Reading(str(gpu), 4.0, 0.0) for gpu in range(4)]


@pytest.mark.parametrize(
    ("megabytes", "percent", "free"),
    [
        (499.9, 9.9, True),
        (500, 0, False),
        (0, 10, False),
        (40_000, 99, False),
        (10, None, True),
        (600, None, False),
    ],
)
def test_a_gpu_is_free_below_both_limits(megabytes, percent, free):
    """Below 500 MB and 10 %; a part of a GPU says nothing of the latter."""
    assert free_gpus([Reading("0", megabytes, percent)], WAIT) == ["0"] * free
    loose = GpuWaitConfig(enabled=True, memory=1e6, utilization=100)
    assert free_gpus([Reading("0", megabytes, percent)], loose) == ["0"]


def test_gpus_that_other_programs_use_are_left_alone(four, tmp_path):
    busy = [Reading("0", 30_000, 0.0, (4711,)), IDLE[1], Reading("2", 0, 55.0), IDLE[3]]
    assert gpus.claim_gpus(2, tmp_path, WAIT, lambda names: busy) == ["1", "3"]


def test_a_claim_waits_until_all_it_needs_are_free_and_says_for_whom(
    four, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO", "atelier")
    busy = Reading("2", 30_000, 97.0, (4711, 4712))
    first = [IDLE[0], IDLE[1], busy, IDLE[3]]
    looks = [first, first, [*IDLE[:2], Reading("2", 400, 97.0), IDLE[3]], IDLE]
    waited = []
    monkeypatch.setattr(gpus.time, "sleep", waited.append)
    found = gpus.claim_gpus(4, tmp_path, WAIT, lambda names: looks.pop(0))
    assert found == ["0", "1", "2", "3"]
    assert looks == []
    assert len(waited) == 3
    assert all(0.5 <= one <= 1.5 for one in waited)
    assert [one.getMessage() for one in caplog.records] == [
        "waiting for 4 of 4 GPUs: GPU 2: 30000 MB, 97 % (pid 4711, 4712)",
        "waiting for 4 of 4 GPUs: GPU 2: 400 MB, 97 % (of no process seen here)",
    ]


def test_what_other_runs_hold_is_not_free_either(four, tmp_path, monkeypatch):
    others = gpus._take(["0"], 1, tmp_path)

    def others_end(seconds):
        for lock in others.values():
            os.close(lock)

    monkeypatch.setattr(gpus.time, "sleep", others_end)
    busy = [IDLE[0], Reading("1", 9000), *IDLE[2:]]
    assert gpus.claim_gpus(3, tmp_path, WAIT, lambda names: busy) == ["0", "2", "3"]


@pytest.mark.parametrize("every", [0.1, 3600.0])
def test_waiting_ends_at_its_limit_with_a_run_that_can_be_resumed(
    four, tmp_path, monkeypatch, every
):
    sleep, slept = time.sleep, []

    def no_longer_than_the_limit(seconds):
        slept.append(seconds)
        sleep(min(seconds, 0.2))

    monkeypatch.setattr(gpus.time, "sleep", no_longer_than_the_limit)
    wait = GpuWaitConfig(enabled=True, every=every, limit=0.2)
    busy = [Reading(str(gpu), 9000, 1.0, (7,)) for gpu in range(4)]
    says = r"limit: 2 GPUs were not free within 0\.2 s; GPU 0: 9000 MB, 1 % \(pid 7\); GPU 1: .*res"
    with pytest.raises(Stopped, match=says):
        gpus.claim_gpus(2, tmp_path, wait, lambda names: busy)
    assert max(slept) <= 0.2
    assert gpus._take(["0", "1", "2", "3"], 4, tmp_path) is not None, "nothing is held"


@pytest.mark.parametrize("wait", [None, GpuWaitConfig()])
def test_without_the_setting_nothing_is_read(four, tmp_path, wait):
    def read(names):
        raise AssertionError("read")

    assert gpus.claim_gpus(1, tmp_path, wait, read) == ["0"]


def test_a_machine_without_gpus_waits_for_none(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "visible_gpus", list)
    assert gpus.claim_gpus(8, tmp_path, WAIT) == []


def test_without_nvml_waiting_is_refused(four, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    says = r"wait_for_gpus\.enabled: .*nvidia-ml-py is not installed; pip install.*enabled=false"
    with pytest.raises(ConfigError, match=says):
        gpus.claim_gpus(1, tmp_path, WAIT)


# As far as NVML is asked; what it answers stands in a file, GPU by GPU.
NVML = """
import json, pathlib
from types import SimpleNamespace
FILE = pathlib.Path(__file__).with_name("answers.json")
nvmlMemory_v2 = 2
class NVMLError(Exception): pass
def nvmlInit():
    if not FILE.exists():
        raise NVMLError("Driver Not Loaded")
def nvmlDeviceGetHandleByIndex(index): return json.loads(FILE.read_text())[index]
def nvmlDeviceGetHandleByUUID(uuid): raise NVMLError("Not Found")
def nvmlDeviceGetMemoryInfo(handle, version=None):
    return SimpleNamespace(used=(handle["mb"] + (0 if version == 2 else 600)) * 2**20)
def nvmlDeviceGetUtilizationRates(handle):
    if handle["percent"] is None:
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=handle["percent"])
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [SimpleNamespace(pid=pid) for pid in handle["pids"]]
"""


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "answers.json"
    sys.modules.pop("pynvml", None)


def test_what_the_driver_says_is_read(nvml):
    own = os.getpid()
    nvml.write_text(
        json.dumps(
            [
                {"mb": 4, "percent": 0, "pids": []},
                {"mb": 70_000, "percent": 99, "pids": [own, 12]},
                {"mb": 20, "percent": None, "pids": []},
            ]
        )
    )
    assert read_gpus(["1", "0", "2"]) == [
        Reading("1", 70_000, 99, (12,)),
        Reading("0", 4, 0),
        Reading("2", 20, None),
    ]
    with pytest.raises(ConfigError, match=r"what uses GPUs GPU-1 \(NVML: Not Found\)"):
        read_gpus(["GPU-1"])
    nvml.unlink()
    with pytest.raises(ConfigError, match=r"\(NVML: Driver Not Loaded\); mend it, or set"):
        read_gpus(["0"])


WAITING = """
import logging, sys
from pathlib import Path
from atelier.config.sections.gpu_waiting import GpuWaitConfig
from atelier.processes import gpus

gpus.visible_gpus = lambda: ["0", "1"]
logging.basicConfig(level="INFO", stream=sys.stdout)
print(gpus.claim_gpus(2, Path(sys.argv[1]), GpuWaitConfig(enabled=True, every=3600)), flush=True)
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_waits_is_cancelled_at_once_and_leaves_nothing(nvml, tmp_path, by):
    idle, busy = ({"mb": mb, "percent": 0, "pids": [77]} for mb in (3, 9000))
    nvml.write_text(json.dumps([idle, busy]))
    command = [sys.executable, "-c", WAITING, str(tmp_path / "locks")]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    (tmp_path / "locks").mkdir()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        line = process.stdout.readline()
        assert "waiting for 2 of 2 GPUs: GPU 1: 9000 MB, 0 % (pid 77)" in line
        process.send_signal(by)
        assert process.wait(PATIENCE) != 0
        assert process.stdout.read() == ""
    assert gpus._take(["0", "1"], 2, tmp_path / "locks") is not None


def warnings(*settings):
    return plan(resolve("tiny/base", settings, Path(os.devnull))).warnings


def test_settings_of_waiting_shape_no_result():
    settings = ["launch.wait_for_gpus.enabled=true", "launch.wait_for_gpus.every=5"]
    found = resolve("tiny/base", [*settings, "launch.device=auto"], Path(os.devnull))
    plain = resolve("tiny/base", ["launch.device=auto"], Path(os.devnull))
    assert stage_digest(found, "train") == stage_digest(plain, "train")
    told = warnings(*settings, "launch.device=cpu")
    assert [one for one in told if "wait_for_gpus.enabled" in one and "a GPU to wait for" in one]
    told = warnings(settings[1], "launch.device=auto")
    assert [one for one in told if one.startswith("launch.wait_for_gpus.every: does nothing")]
