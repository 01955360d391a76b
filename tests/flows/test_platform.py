"""`atelier up` and `atelier down` for real, on ports and a PREFECT_HOME of the test's own.

The tests share one platform, in this order: it is looked at, used, damaged, and brought down.
"""

from __future__ import annotations

import http.server
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from atelier.tracking.run_directory import RunDirectory
from flows.local_platform.catching_up import runs_behind
from tests.flows.conftest import processes_of, wait_for_end
from tests.support.fake_run import finish, open_fake_run, write_steps
from tests.support.patience import at_once
from tests.support.platform_place import ROOT, PlatformPlace

pytestmark = pytest.mark.slow

DEPLOYMENTS = {
    "grpo/full",
    "prepare/run",
    "train/run",
    "evaluate/run",
    "export/run",
    "report/run",
    "compare/run",
    "rewards/serve",
    "node/run",
}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformPlace]:
    place = PlatformPlace.at(tmp_path_factory.mktemp("platform"))
    finish(open_fake_run(place.root / "runs" / "earlier", place.mlflow_uri))
    try:
        words = place.up()
        assert place.api_url.removesuffix("/api") in words
        assert place.mlflow_url in words
        assert "prefect deployment run grpo/full" in words
        yield place
    finally:  # also of an `up` that failed half-way
        place.down("--force")
    assert wait_for_end(place.root) == []


@pytest.fixture(scope="module")
def messages(platform: PlatformPlace) -> Iterator[list[dict[str, str]]]:
    """What a webhook receives that a user made a block for."""
    received: list[dict[str, str]] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    script = f"""
from prefect.blocks.notifications import CustomWebhookNotificationBlock as Webhook
Webhook(
    name="test",
    url="{{{{address}}}}",
    secrets={{"address": "http://127.0.0.1:{server.server_port}"}},
    json_data={{"subject": "{{{{subject}}}}", "body": "{{{{body}}}}"}},
).save("atelier-failures")
"""
    done = platform.script(script)
    assert done.returncode == 0, done.stderr
    yield received
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def failing_run(platform: PlatformPlace, messages: list[dict[str, str]]) -> UUID:
    """Started here, so that it runs while other tests wait for something else."""
    platform.up("--gpu-slots", "3")  # which also registers the notification, now that it can
    arguments = ("deployment", "run", "grpo/full", "--param", "recipe=tiny/nonsense")
    done = platform.run("prefect", *arguments)
    assert done.returncode == 0, done.stderr
    with platform.client as client:
        (run,) = client.read_flow_runs()
    return UUID(str(run.id))


def test_everything_is_registered(platform: PlatformPlace):
    listed = platform.run("prefect", "deployment", "ls").stdout
    assert all(name in listed for name in DEPLOYMENTS)
    with platform.client as client:
        limits = {one.name: one.limit for one in client.read_global_concurrency_limits(10, 0)}
        (zombies,) = client.read_automations()
        variables = [one.job_variables for one in client.read_deployments()]
    assert set(limits) == {"gpu", "dvc"}
    assert limits["dvc"] == 1
    assert limits["gpu"] >= 1
    assert zombies.name == "atelier: flow runs without a heartbeat"
    assert variables == [{"stream_output": False}] * len(DEPLOYMENTS)


def test_the_uis_are_served(platform: PlatformPlace):
    assert answers(platform.api_url.removesuffix("/api"))
    assert answers(platform.mlflow_url)
    assert (platform.root / "mlflow/mlflow.db").exists()
    log = (platform.home / "logs/server.log").read_text()
    assert "Traceback" not in log


def test_up_again_changes_nothing_but_what_it_is_asked_for(
    platform: PlatformPlace, failing_run: UUID
):
    before, updated = platform.state(), last_updates(platform)
    assert "up already" in platform.up()
    assert platform.state() == before
    assert last_updates(platform) == updated
    with platform.client as client:
        assert client.read_global_concurrency_limit_by_name("gpu").limit == 3  # asked for before


def last_updates(platform: PlatformPlace) -> dict[str, Any]:
    """When each automation was last written, and when prefect.yaml was last deployed."""
    with platform.client as client:
        automations = client.request("POST", "/automations/filter", json={}).json()
    assert len(automations) == 2
    deployed = (platform.home / "logs/deploy.log").stat().st_mtime
    return {"deployed": deployed, **{one["id"]: one["updated"] for one in automations}}


def test_a_run_without_heartbeats_crashes_and_one_with_them_does_not(platform: PlatformPlace):
    """The shipped automation, but for its patience."""
    from prefect.events.schemas.automations import AutomationCore

    definition = yaml.safe_load((ROOT / "configs/automations/zombie.yaml").read_text())
    definition = {**definition, "name": "impatient"}
    definition["trigger"]["within"] = 10
    with platform.client as client:
        client.create_automation(AutomationCore.model_validate(definition))
        living, dead = (client.create_flow_run(named("x"), state=running()) for _ in "12")
        time.sleep(2)  # until the server knows the automation
        send_heartbeat(platform, dead.id)
        deadline = time.monotonic() + 60
        while client.read_flow_run(dead.id).state.name != "Crashed":
            assert time.monotonic() < deadline
            send_heartbeat(platform, living.id)
            time.sleep(2)
        assert client.read_flow_run(living.id).state.name == "Running"
        for run in (living, dead):
            client.delete_flow_run(run.id)


def named(name: str) -> Any:
    from prefect import flow

    @flow(name=name)
    def body() -> None:
        pass

    return body


def running() -> Any:
    from prefect.states import Running

    return Running(timestamp=datetime.now(UTC))


def send_heartbeat(platform: PlatformPlace, run: UUID) -> None:
    from prefect.events.schemas.events import Event

    event = Event(
        event="prefect.flow-run.heartbeat",
        resource={"prefect.resource.id": f"prefect.flow-run.{run}"},
    )
    request = urllib.request.Request(
        f"{platform.api_url}/events",
        json.dumps([event.model_dump(mode="json")]).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()


def test_a_failed_run_is_told_to_the_webhook(
    platform: PlatformPlace, messages: list[dict[str, str]], failing_run: UUID
):
    with platform.client as client:
        platform.wait(lambda: client.read_flow_run(failing_run).state.is_final())
        run = client.read_flow_run(failing_run)
    assert run.state.name == "Failed"
    subject = f"{run.name}: Failed"
    message = platform.wait(lambda: next((m for m in messages if m["subject"] == subject), None))
    assert "tiny/nonsense" in message["body"]
    assert str(failing_run) in message["body"]


def test_a_command_uses_the_platforms_server(platform: PlatformPlace):
    script = (
        "import flows\nfrom flows.local_platform.server import prefect_server\n"
        "from prefect.settings import PREFECT_API_URL\n"
        "with prefect_server(): print(PREFECT_API_URL.value())\n"
    )
    done = platform.script(script, PREFECT_API_URL="")
    assert done.stdout.strip() == platform.api_url, done.stderr


def test_mlflow_is_sent_what_it_lacks(platform: PlatformPlace):
    memory = platform.root / "runs/earlier/mlflow.json"
    platform.wait(
        lambda: memory.exists() and json.loads(memory.read_text())["status"] == "FINISHED"
    )
    assert runs_behind(platform.root / "runs") == []
    write_steps(RunDirectory(memory.parent), [99])
    assert [run.root for run in runs_behind(platform.root / "runs")] == [memory.parent]


def test_killed_services_are_started_again(platform: PlatformPlace):
    before = platform.restarts()
    killed = [platform.service(name) for name in ("server", "mlflow", "worker")]
    for process in killed:
        process.kill()
    platform.wait(lambda: all(n > before[name] for name, n in platform.restarts().items()))
    platform.wait(lambda: answers(f"{platform.api_url}/health"))
    platform.wait(lambda: answers(f"{platform.mlflow_url}/health"))
    assert "up already" in platform.up()  # which waits for the worker


def test_down_is_refused_while_a_run_needs_the_platform(platform: PlatformPlace):
    with platform.client as client:
        run = client.create_flow_run(named("grpo"), state=running())
        done = platform.run("atelier", "down")
        client.delete_flow_run(run.id)
    assert done.returncode == 1
    assert str(run.id) in done.stderr
    assert "--force" in done.stderr
    assert answers(f"{platform.api_url}/health")


def test_down_leaves_nothing_and_says_so(platform: PlatformPlace):
    with at_once():
        assert "is down" in platform.down()
    assert wait_for_end(platform.root, 1.0) == []
    assert not answers(f"{platform.api_url}/health")
    assert "not up" in platform.down()


@pytest.mark.parametrize("end", ["down", "killed"])
def test_a_half_started_platform_leaves_nothing(tmp_path: Path, end: str):
    place = PlatformPlace.at(tmp_path)
    up = place.start("atelier", "up")
    place.wait(lambda: len(place.state().get("services", {})) == 2)
    guards = {one["guard"] for one in place.state()["services"].values()}
    place.wait(lambda: guards <= {process.pid for process in processes_of(tmp_path)})
    if end == "down":
        assert "is down" in place.down()
    else:
        processes = {process.pid: process for process in processes_of(tmp_path)}
        processes[place.state()["pid"]].send_signal(signal.SIGKILL)
    _, errors = up.communicate(timeout=60)
    assert up.returncode == 1
    assert "stopped while it started" in errors
    assert "Traceback" not in errors
    assert wait_for_end(tmp_path) == []


def test_a_busy_port_is_named_with_what_to_change(tmp_path: Path):
    place = PlatformPlace.at(tmp_path)
    with socket.create_server(("127.0.0.1", place.port)):
        done = place.run("atelier", "up")
    assert done.returncode == 2
    assert f"port {place.port}" in done.stderr
    assert "prefect.toml" in done.stderr
    with socket.create_server(("127.0.0.1", place.mlflow_port)):
        done = place.run("atelier", "up")
    assert done.returncode == 2
    assert "ATELIER_MLFLOW_PORT" in done.stderr
    assert wait_for_end(tmp_path) == []


def test_a_chosen_server_that_does_not_answer_is_refused_at_once(tmp_path: Path):
    place = PlatformPlace.at(tmp_path)
    done = place.run("atelier", "run", "--recipe", "tiny/base")
    assert done.returncode == 2
    assert "PREFECT_API_URL" in done.stderr
    assert not (tmp_path / "runs").exists()
    assert not (place.home / "logs").exists()
