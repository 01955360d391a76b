"""Supervision of one service, on a program that comes and goes as told."""

import os
import signal
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from atelier.config.paths import repository_root
from atelier.config.resolve import resolve
from atelier.errors import ConfigError, Stopped
from atelier.stages.servers import managed
from atelier.stages.servers.kinds import RewardServiceKind
from atelier.stages.servers.managed import ManagedServer, ServerSpec
from atelier.stages.servers.run_servers import RunServers
from atelier.tracking.run_directory import RunDirectory
from tests.support.reward_services import wait_until


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """Starts the program with some behaviours; ends it whatever happens."""
    for name, value in {"FIRST_PAUSE_SECONDS": 0.05, "READY_POLL_SECONDS": 0.1}.items():
        monkeypatch.setattr(managed, name, value)
    root = repository_root()
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"}
    started = []

    def start(behaviours, startup_seconds=30.0):
        lives = tmp_path / "lives"
        files = ["--port-file", str(tmp_path / "port")]
        program = [sys.executable, "-m", "tests.support.fake_service", str(lives), behaviours]
        spec = ServerSpec(
            kind=RewardServiceKind,
            label="rewards.x-0",
            command=lambda port: [*program, "--port", str(port), *files],
            log=tmp_path / "service.log",
            record=tmp_path / "record.json",
            port_file=tmp_path / "port",
            environment=environment,
            startup_seconds=startup_seconds,
        )
        service = ManagedServer(spec)
        started.append(service)
        service.start()
        return service

    start.lives = lambda: [line.split() for line in (tmp_path / "lives").read_text().splitlines()]
    yield start
    for service in started:
        service.stop()
    for pid, _ in start.lives():
        assert not psutil.pid_exists(int(pid))


def ready(service):
    wait_until(lambda: service.is_ready or service.problem is not None, 30)
    assert service.is_ready, service.problem


def test_it_is_ready_on_a_free_port_and_its_pid_is_known(supervised):
    service = supervised("ready")
    ready(service)
    assert service.url.startswith("http://127.0.0.1:")
    assert str(service.pid) == supervised.lives()[0][0]


def test_a_killed_one_comes_back_on_its_port(supervised):
    service = supervised("ready")
    ready(service)
    url = service.url
    os.kill(service.pid, signal.SIGKILL)
    wait_until(lambda: service.restarts == 1 and service.is_ready, 30)
    assert service.url == url
    first, second = supervised.lives()
    assert (first[1], second[1]) == ("0", url.rpartition(":")[2])


@pytest.mark.parametrize("behaviour", ["deaf", "loading"])
def test_one_that_is_not_ready_is_restarted(supervised, monkeypatch, behaviour):
    monkeypatch.setattr(managed, "UNREADY_SECONDS", 0.5)
    monkeypatch.setattr(managed, "ANSWER_SECONDS", 0.3)
    service = supervised(f"{behaviour},ready", startup_seconds=2.0)
    wait_until(lambda: service.restarts == 1 and service.is_ready, 30)


def test_repeated_failures_open_the_circuit(supervised):
    service = supervised("ready,1")
    ready(service)
    os.kill(service.pid, signal.SIGKILL)
    wait_until(lambda: service.problem is not None, 30)
    assert isinstance(service.problem, Stopped)
    assert "rewards.x-0: its server failed 5 times in a row" in str(service.problem)
    assert "life 4 ends with 1" in str(service.problem)
    assert len(supervised.lives()) == 5
    time.sleep(0.3)
    assert len(supervised.lives()) == 5


def test_a_bad_configuration_is_not_tried_again(supervised):
    service = supervised("2")
    wait_until(lambda: service.problem is not None, 30)
    assert isinstance(service.problem, ConfigError)
    assert "life 0 ends with 2" in str(service.problem)
    assert len(supervised.lives()) == 1


def test_a_golden_sample_that_is_wrong_is_a_bad_configuration(supervised):
    service = supervised("failed")
    wait_until(lambda: service.problem is not None, 30)
    assert isinstance(service.problem, ConfigError)
    assert str(service.problem) == "the golden sample is wrong"


def test_the_run_goes_on_while_one_replica_is_left(tmp_path):
    servers = RunServers(RunDirectory(tmp_path), resolve("tiny/base"))
    first, second = SimpleNamespace(problem=None), SimpleNamespace(problem=None)
    servers._servers = {"ocr": [first, second]}
    first.problem = Stopped("first is given up")
    servers.check()
    second.problem = Stopped("second too")
    with pytest.raises(Stopped, match="first is given up"):
        servers.check()
