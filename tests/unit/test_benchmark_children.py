"""What a benchmark waits for ends with it, also where it is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from atelier.config.paths import repository_root
from benchmarks.children import finish
from tests.support.patience import PATIENCE
from tests.support.runs import environment

PATH = os.pathsep.join([str(repository_root() / "src"), str(repository_root())])
SLEEPER = "[sys.executable, '-c', 'import time; time.sleep(3600)']"
# By the benchmark's own way to start something, what nobody answers and what never ends.
BENCHMARKS = {
    "conversion": "conversion.atelier('node', '--address', '127.0.0.1')",
    "children": f"children.finish({SLEEPER})",
}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_its_programs_end_with_it(benchmark: str, by: signal.Signals) -> None:
    script = f"import sys\nfrom benchmarks import {benchmark}\n{BENCHMARKS[benchmark]}\n"
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(PYTHONPATH=PATH), stderr=subprocess.DEVNULL
    )
    programs: list[psutil.Process] = []
    try:
        started = psutil.Process(process.pid).children
        _wait_for(lambda: any(not _is_guard(one) for one in started(recursive=True)))
        programs = started(recursive=True)
        process.send_signal(by)
        process.wait(PATIENCE)
        _wait_for(lambda: not any(one.is_running() for one in programs))
    finally:
        process.kill()
        process.wait()
        for one in programs:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def _is_guard(process: psutil.Process) -> bool:
    return "atelier.processes.guard" in process.cmdline()[:3]


def _wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_program_that_fails_is_shown() -> None:
    command = [sys.executable, "-c", "import sys; print('said'); sys.exit('no room')"]
    with pytest.raises(SystemExit, match=r"exit code 1\n(.|\n)*no room"):
        finish(command)


def test_a_program_is_given_its_environment_and_that_of_the_benchmark() -> None:
    asked = "import os; assert os.environ['OWN'] == '1' and os.environ['PATH']"
    finish([sys.executable, "-c", asked], OWN="1")
