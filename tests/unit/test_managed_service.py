"""Supervision of one service, on a program that comes and goes as told."""

import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from tests.support.patience import PATIENCE
from tests.support.reward_services import wait_until


@pytest.fixture
def supervised(tmp_path, monkeypatch):
    """Starts the program with some behaviours; ends it whatever happens."""
    for name, value in {"FIRST_PAUSE_SECONDS": 0.05, "READY_POLL_SECONDS": 0.1}.items():
        monkeypatch.setattr(managed, name, value)
    root = repository_root()
    environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"}
    started = []

    def start(behaviours, startup_seconds=30.0, port=0):
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
            port=port,
        )
        service = ManagedServer(spec)
        started.append(service)
        service.start()
        return service

    start.lives = lambda: [line.split() for line in (tmp_path / "lives").read_text().splitlines()]
    yield start
    for service in started:
        service.stop()
    for pid, _ in start.lives() if (tmp_path / "lives").exists() else ():
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


def test_one_that_answers_no_more_is_restarted(supervised, monkeypatch):
    monkeypatch.setattr(managed, "UNREADY_SECONDS", 0.5)
    monkeypatch.setattr(managed, "ANSWER_SECONDS", 0.3)
    service = supervised("deaf,ready", startup_seconds=10.0)
    wait_until(lambda: service.restarts == 1 and service.is_ready, 30)


def test_its_startup_bounds_all_of_its_coming_up(supervised):
    service = supervised("loading", startup_seconds=2.0)
    wait_until(lambda: service.problem is not None, PATIENCE)
    assert "not ready for 2 s" in str(service.problem)
    assert len(supervised.lives()) == 1


def test_another_program_on_its_port_is_neither_asked_nor_drained(supervised):
    """The one there would say that it is ready, and is not ours."""
    asked = []

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = b'{"ready": true, "draining": false, "rewards": {}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as foreign:
        threading.Thread(target=foreign.serve_forever, daemon=True).start()
        service = supervised("ready", port=foreign.server_port)
        wait_until(lambda: service.problem is not None, 30)
        service.stop()
        foreign.shutdown()
    assert isinstance(service.problem, ConfigError)
    assert f"port {foreign.server_port} on 127.0.0.1 cannot be listened on" in str(service.problem)
    assert not asked


def problem_of(folder, program, token=None):
    """Why a program is not started any more."""
    server = ManagedServer(
        ServerSpec(
            label="rewards.x-0",
            kind=RewardServiceKind,
            command=lambda _: program,
            log=folder / "log",
            record=folder / "record",
            port_file=folder / "port",
            environment=dict(os.environ),
            startup_seconds=20.0,
            token=token,
        )
    )
    server.start()
    try:
        wait_until(lambda: server.problem is not None, 30)
    finally:
        server.stop()
    return server.problem


def test_its_last_words_are_one_line_without_its_token(tmp_path):
    said = "Secret \x1b[2J" + "sesam " * 1000
    program = [sys.executable, "-c", f"import sys; sys.stderr.write({said!r}); sys.exit(2)"]
    problem = problem_of(tmp_path, program, token="sesam")
    text = str(problem)
    assert "sesam" not in text
    assert text.isprintable()
    assert len(text) < 1100


def test_a_program_that_is_not_there_is_a_bad_configuration(tmp_path):
    problem = problem_of(tmp_path, [str(tmp_path / "nothing")])
    assert isinstance(problem, ConfigError), problem


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
