"""What the platform decides without starting anything, and a keeper with a program that ends."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import yaml

from atelier.errors import ConfigError
from atelier.processes.host import this_host
from flows.local_platform import environment, supervisor
from flows.local_platform.environment import platform_api_url, without_password
from flows.local_platform.loopback import is_loopback
from flows.local_platform.services import Service
from flows.local_platform.state import Platform
from flows.local_platform.up import _mlflow_port

ROOT = Path(__file__).parents[2]


def test_every_flow_is_tidied_up_after():
    """Of a killed process of a flow that is not listed, the run stays Running for ever."""
    from flows.local_platform.reconcile import FLOWS

    texts = [path.read_text() for path in (ROOT / "flows").glob("*.py")]
    names = [name for text in texts for name in re.findall(r"^@flow\(name=\"(\w+)\"", text, re.M)]
    assert sorted(FLOWS) == sorted(names)


@pytest.mark.parametrize(
    ("flow", "parameters", "deployed", "command"),
    [
        ("grpo", {}, False, "atelier run --resume run-1"),
        ("train", {"run": "runs/x"}, False, "atelier run --resume runs/x"),
        ("node", {"address": "10.0.0.1"}, False, "start it again"),
        ("rewards", {}, False, "start it again"),
        ("node", {}, True, "prefect flow-run retry run-1"),
    ],
)
def test_what_goes_on_with_a_run_depends_on_its_flow(
    flow: str, parameters: dict[str, str], deployed: bool, command: str
):
    from tasks.outcome import command_to_go_on

    assert command_to_go_on(flow, parameters, "run-1", deployed) == command


def test_a_console_is_quiet_and_services_are_not():
    settled: dict[str, str] = {"PREFECT_API_URL": ""}
    environment.settle(settled)
    assert "PREFECT_API_URL" not in settled
    assert settled["PREFECT_LOGGING_LEVEL"] == "CRITICAL"
    served = environment.for_services("http://127.0.0.1:1/api", settled)
    assert "PREFECT_LOGGING_LEVEL" not in served
    assert served["PREFECT_API_URL"] == "http://127.0.0.1:1/api"


def test_what_the_user_set_stays():
    own = {"PREFECT_HOME": "/elsewhere", "PREFECT_LOGGING_LEVEL": "DEBUG"}
    settled = dict(own)
    environment.settle(settled)
    assert own.items() <= environment.for_services("http://x/api", settled).items()


def test_the_servers_address_comes_from_the_variable_or_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert environment.platform_api_url() == "http://127.0.0.1:4200/api"
    assert environment.chosen_api_url() is None
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4299/api/")
    assert environment.platform_api_url() == "http://127.0.0.1:4299/api"
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setattr(environment, "repository_root", lambda: tmp_path)
    for text, words in (("api = 1", "missing"), ("api =", "cannot be read")):
        (tmp_path / "prefect.toml").write_text(text)
        with pytest.raises(ConfigError, match=words):
            environment.platform_api_url()


def test_prefect_reads_the_same_home_and_heartbeat_from_its_own_file():
    import tomllib

    own = tomllib.loads((ROOT / "prefect.toml").read_text())
    settled: dict[str, str] = {}
    environment.settle(settled)
    assert settled["PREFECT_HOME"] == str(ROOT / own["home"])
    assert settled["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == str(own["flows"]["heartbeat_frequency"])
    within = yaml.safe_load((ROOT / "configs/automations/zombie.yaml").read_text())["trigger"]
    assert within["within"] >= 5 * own["flows"]["heartbeat_frequency"]


def test_the_zombies_message_is_complete_as_it_stands():
    """Prefect renders templates in notifications, and not in the message of a state."""
    file = yaml.safe_load((ROOT / "configs/automations/zombie.yaml").read_text())
    (action,) = file["actions"]
    assert "flow-run retry` with this run's id" in action["message"]
    assert not re.search(r"\bID\b|<|{", action["message"])


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://127.0.0.1:4200/api", True), ("http://localhost/api", True), ("http://h/api", False)],
)
def test_loopback(url: str, local: bool):
    assert is_loopback(url) == local


def test_a_platform_whose_supervisor_is_gone_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    from flows.local_platform.state import require_none_elsewhere, running_platform

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    assert running_platform() is None
    platform = Platform.of_this_process("http://127.0.0.1:1/api", "http://127.0.0.1:2")
    platform.save()
    assert running_platform() == platform
    platform.host = "another/01234567"
    platform.save()
    assert running_platform() is None
    with pytest.raises(ConfigError, match="machine another/01234567 has a platform in"):
        require_none_elsewhere()
    platform.host = this_host()
    platform.started -= 1000.0  # the pid has come again
    platform.save()
    assert running_platform() is None
    require_none_elsewhere()
    (tmp_path / "platform.json").write_text('{"of": "another version"}')
    assert running_platform() is None
    require_none_elsewhere()


def test_a_keeper_starts_again_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.05)
    ends = Service("ends", [sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path)
    keeper = supervisor.Keeper(ends)
    started = []
    deadline = time.monotonic() + 60
    while len(started) < 4:
        assert time.monotonic() < deadline
        if keeper.tend() and keeper.guard:
            started.append(time.monotonic())
        time.sleep(0.01)
    keeper.stop()
    assert keeper.restarts >= 3
    assert keeper._pause == pytest.approx(0.05 * 2**keeper.restarts)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1:1/api",
        "garbage",
        "http://",
        "http://[::1/api",
        "http://127.0.0.1:99999/api",
    ],
)
def test_an_address_that_is_none_is_refused(monkeypatch, url):
    monkeypatch.setenv("PREFECT_API_URL", url)
    with pytest.raises(ConfigError, match=r"PREFECT_API_URL is .*http://HOST:PORT/api expected"):
        platform_api_url()


def test_a_password_in_an_address_is_not_shown(monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "ftp://user:hunter2@example.com/api")
    with pytest.raises(ConfigError) as caught:
        platform_api_url()
    assert "hunter2" not in str(caught.value)
    assert without_password("http://a.b/c@d") == "http://a.b/c@d"


@pytest.mark.parametrize("port", ["0", "70000", "4200", "x", "-1", "\u0663\u0663"])
def test_a_port_that_is_none_or_the_servers_is_refused(monkeypatch, port):
    monkeypatch.setenv("ATELIER_MLFLOW_PORT", port)
    with pytest.raises(ConfigError, match="ATELIER_MLFLOW_PORT"):
        _mlflow_port(4200, print)
