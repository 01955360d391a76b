"""Training whose reward is a service: killed in the middle, failing for good, placed elsewhere.

Real trainers; a run whose reward was scored in the trainer's own process is what all others must
equal.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from atelier.config.digest import scorer_digest
from atelier.config.resolve import load_stage_config
from atelier.config.sections.rewards import JpegConfig
from atelier.errors import Stopped
from atelier.rewards.scorers.jpeg import JpegCompressibility
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE, TOKEN_VARIABLE
from atelier.stages.servers import managed
from atelier.stages.servers.run_servers import RunServers
from atelier.tracking.run_directory import RunDirectory
from tests.flows.conftest import processes_of, wait_for_end
from tests.support.reward_services import service, wait_until
from tests.support.runs import environment, make_run, metrics, start, train, trainer_command

pytestmark = pytest.mark.slow

REWARD = "jpeg_compressibility"
PLACEMENT = f"rewards.{REWARD}.placement"


def new_run(folder: Path, *overrides: str) -> RunDirectory:
    own = (f"tracking.mlflow_uri=sqlite:///{folder}/mlflow.db", "launch.threads=1")
    return make_run(folder, [*own, *overrides])


# One step off, a step's images wait for their scores while the step before is learned.
AHEAD = ("train.one_step_off=true", "train.checkpoint_every=10")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    run = new_run(tmp_path_factory.mktemp("undisturbed"))
    train(run)
    return metrics(run)


@pytest.fixture(scope="module")
def undisturbed_ahead(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    run = new_run(tmp_path_factory.mktemp("undisturbed-ahead"), *AHEAD)
    train(run)
    return metrics(run)


def steps_done(run: RunDirectory) -> int:
    return len(run.metrics.read_text().splitlines()) if run.metrics.exists() else 0


@pytest.mark.parametrize(
    ("overrides", "expected"), [((), "undisturbed"), (AHEAD, "undisturbed_ahead")]
)
def test_a_service_killed_in_the_middle_of_a_step_changes_no_number(
    tmp_path, request: pytest.FixtureRequest, overrides: tuple[str, ...], expected: str
):
    """Stopped first, so that requests of a later step wait in it when it is killed."""
    undisturbed = request.getfixturevalue(expected)
    run = new_run(tmp_path, f"{PLACEMENT}=managed", *overrides)
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier", "stage", "train", "--run", str(run.root)],
        env=environment(TEST_PLACE=str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: steps_done(run) == 1, 150)
        (before,) = json.loads((run.train / "reward_services.json").read_text())[REWARD]
        os.kill(before["pid"], signal.SIGSTOP)
        wait_until(lambda: has_connection(before["url"]), 30)
        assert steps_done(run) < 3, "it was stopped too late to show anything"
        os.kill(before["pid"], signal.SIGKILL)
        errors = process.communicate(timeout=200)[1]
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert metrics(run) == undisturbed
    (after,) = json.loads((run.train / "reward_services.json").read_text())[REWARD]
    assert after["pid"] != before["pid"]
    assert (before["restarts"], after["restarts"]) == (0, 1)
    same = ("url", "version", "config", "log")
    assert [after[key] for key in same] == [before[key] for key in same]
    assert f"rewards.{REWARD}: {before['url']}" in (run.train / "trainer.log").read_text()
    assert not processes_of(tmp_path)
    assert not psutil.pid_exists(after["pid"])
    require_no_secret(run)


def has_connection(url: str) -> bool:
    """Whether a request has been sent to a service that reads nothing."""
    port = int(url.rpartition(":")[2])
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return any(row[1].endswith(f":{port:04X}") and int(row[4].split(":")[1], 16) for row in rows)


def require_no_secret(run: RunDirectory) -> None:
    """No token in any file of the run; the token's variable says where it would come from."""
    for path in run.root.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".log", ".yaml"):
            text = path.read_text()
            assert MANAGED_TOKEN_VARIABLE not in text, path
            assert "Bearer" not in text, path


class Fails(JpegCompressibility):
    """The reward of the run, until it has scored some batches."""

    def __init__(self, batches: int) -> None:
        super().__init__(JpegConfig())
        self._left = batches

    def score(self, batch):
        if batch.prompts[0] != "grey":
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("no memory left")
        return super().score(batch)


def test_a_scorer_that_always_fails_stops_the_run_which_goes_on_elsewhere(tmp_path, undisturbed):
    """Two steps are scored, then nothing: 75, the checkpoint is there, and the run is finished with
    the reward in process: the same numbers as if nothing had happened."""
    digest = scorer_digest(REWARD, JpegConfig())
    with service(Fails(8), digest=digest, name=REWARD, token="sesam") as url:
        overrides = [f"{PLACEMENT}=remote", f"rewards.{REWARD}.urls=[{url}]", "rewards.deadline=4"]
        run = new_run(tmp_path, *overrides)
        trainer = subprocess.run(
            trainer_command(run),
            env=environment(**{TOKEN_VARIABLE: "sesam"}),
            capture_output=True,
            text=True,
        )
    errors = trainer.stderr
    assert trainer.returncode == 75, errors
    assert "step 3: only 0% of the images have a score" in errors
    assert "scorer_failed: RuntimeError: no memory left" in errors
    assert "Mend the reward and resume" in errors
    assert "sesam" not in errors + trainer.stdout
    assert steps_done(run) == 2
    assert (run.checkpoints / "step-000002" / "MANIFEST.json").exists()

    train(new_run(tmp_path))  # the same run, resolved again: in process
    assert metrics(run) == undisturbed
    assert '"resumed"' in run.events.read_text()


class Away(JpegCompressibility):
    """The reward of the run; after some batches it is away for some seconds."""

    def __init__(self, batches: int, seconds: float) -> None:
        super().__init__(JpegConfig())
        self._left, self._seconds, self._back = batches, seconds, 0.0

    def score(self, batch):
        if batch.prompts[0] != "grey":
            self._left -= 1
            if self._left == -1:
                self._back = time.monotonic() + self._seconds
            if time.monotonic() < self._back:
                raise RuntimeError("away")
        return super().score(batch)


def test_an_outage_longer_than_the_deadline_is_waited_for(tmp_path):
    """Eight seconds without a score where a step waits for two: the run neither stops nor learns
    from what it has, and its numbers are as if nothing had happened. Two ranks, which wait for each
    other's scores."""
    undisturbed = new_run(tmp_path / "undisturbed")
    train(undisturbed, processes=2)
    with service(Away(6, 8.0), digest=scorer_digest(REWARD, JpegConfig()), name=REWARD) as url:
        own = ("rewards.deadline=2", "rewards.replay=20")
        urls = f"rewards.{REWARD}.urls=[{url}]"
        run = new_run(tmp_path / "away", f"{PLACEMENT}=remote", urls, *own)
        ranks = start(run, processes=2)
        assert set(ranks.wait()) == {0}, ranks.output[-5000:]
    assert "scores are missing for now" in ranks.output
    assert "time 2 of 20" in ranks.output
    assert metrics(run) == metrics(undisturbed)
    files = [{path.name: path.read_bytes() for path in one.step_samples(3).iterdir()}
             for one in (run, undisturbed)]  # fmt: skip
    assert files[0] == files[1]
    samples = json.loads(files[0]["samples.json"])["samples"]
    assert len({one["image"] for one in samples}) == 16
    assert samples[0]["scores"] == {REWARD: samples[0]["total"]}


def test_services_that_cannot_start_stop_the_run_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(managed, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(broken_fastapi(tmp_path)))
    run = new_run(tmp_path, f"{PLACEMENT}=managed", f"rewards.{REWARD}.replicas=2")
    config = load_stage_config(run.config("train"))
    with pytest.raises(Stopped, match=r"failed 5 times in a row.*no fastapi today"):
        RunServers(run, config).__enter__()
    assert not processes_of(tmp_path)


def broken_fastapi(folder: Path) -> Path:
    package = folder / "broken" / "fastapi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('no fastapi today')\n")
    return folder / "broken"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_a_shared_service_ends_with_its_command(tmp_path, signum, code):
    """`atelier rewards serve`, asked to end and killed: in both cases nothing is left."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    options = ["--recipe", "tiny/base", "--set", f"rewards.{REWARD}.weight=0.0"]
    where = ["--port", str(port), "--folder", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier", "rewards", "serve", *options, *where],
        env=environment(TEST_PLACE=str(tmp_path), PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = f"http://127.0.0.1:{port}"
        said = f"ocr, {REWARD} at {url}; log in {tmp_path}; Ctrl-C stops\n"
        assert process.stdout.readline() == said
        services = json.loads((tmp_path / "reward_services.json").read_text())
        assert services == {"ocr": [{"url": url}], REWARD: [{"url": url}]}
        assert len(processes_of(tmp_path)) == 3  # the command, the guard and the service
        process.send_signal(signum)
        assert process.wait(30) == code
    finally:
        process.kill()
        process.stdout.close()
    assert not wait_for_end(tmp_path)
