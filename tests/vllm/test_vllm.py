"""A real vLLM as a managed judge: up, asked, slept and woken, killed, restarted, gone.

Needs its environment (`make test-vllm` makes it). Every start takes about half a minute.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from atelier.config.paths import repository_root
from atelier.config.sections.judge import JudgeConfig
from atelier.data.questions import KINDS, ask
from atelier.data.render import render
from atelier.data.scenes import sample_scene
from atelier.environments import environment
from atelier.errors import ConfigError
from atelier.judge import Answer, Question, YesNoForm
from atelier.judge_models.local import LocalJudge
from atelier.rewards.scorers.judges import SharedJudge
from atelier.stages.servers.managed import ManagedServer
from atelier.stages.servers.specs import Place, judge_spec
from atelier.stages.servers.vllm import installed_version
from tests.support.reward_services import wait_until

if environment("vllm", repository_root()).state() != "current":
    pytest.fail("the environment vllm is missing or stale: run `make test-vllm`", pytrace=False)

MODEL = "assets/tiny-judge"
TOKEN = "sesam"
UP_SECONDS = 240
SMALL = {"max_model_len": 512, "max_images": 2}
ASKING = {"max_tokens": 1, "temperature": 0}


def judge(**values) -> JudgeConfig:
    own = {"model": MODEL, "dtype": "float32", "vllm": SMALL, "parameters": ASKING}
    return JudgeConfig.model_validate({**own, **values})


def managed(folder: Path, config: JudgeConfig) -> ManagedServer:
    place = Place("judges.scene-0", folder / "judge", folder / "judge-record.json", TOKEN)
    return ManagedServer(judge_spec(place, "scene", config))


def until_ready(server: ManagedServer) -> None:
    wait_until(lambda: server.is_ready or server.problem is not None, UP_SECONDS)
    assert server.problem is None, server.problem


def client(server: ManagedServer, monkeypatch, **values) -> SharedJudge:
    monkeypatch.setenv("JUDGE_TOKEN", TOKEN)
    own = {"placement": "remote", "urls": [f"{server.url}/v1"], "token_env": "JUDGE_TOKEN"}
    return SharedJudge(judge().model_copy(update={**own, **values}), "judges.scene")


def questions(count: int = 24) -> list[Question]:
    rng = random.Random(11)
    found = []
    while len(found) < count:
        scene = sample_scene(rng, rng.choice(("word", "shapes", "mixed")), "heldout")
        one = ask(scene, rng.choice(KINDS), rng.random() < 0.5, rng)
        if one is not None:
            found.append(Question(one.text, YesNoForm(), [render(scene, rng)]))
    return found


def p_yes(answers: list[Answer]) -> list[float]:
    assert not [one.missing for one in answers if one.missing]
    return [one.numbers["p_yes"] for one in answers]


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    return not [one for one in processes if one.is_running() and one.status() != "zombie"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedServer]:
    found = managed(
        tmp_path_factory.mktemp("vllm"),
        judge(vllm={**SMALL, "sleep": True}, server={"share_gpus": True}),
    )
    found.start()
    until_ready(found)
    yield found
    processes, port = family(found.pid), int(found.url.rpartition(":")[2])
    found.stop()
    assert gone(processes)
    assert not listens(port)


def test_it_says_what_it_is(server: ManagedServer):
    (identity,) = server.identities().values()
    version = installed_version(environment("vllm", repository_root()).python)
    assert identity["version"] == f"vllm-{version}"
    assert identity["model"] == MODEL
    assert len(identity["weights"]) == 64


def test_it_scores_as_the_same_model_in_this_process(server: ManagedServer, monkeypatch):
    asked = questions()
    online = client(server, monkeypatch)
    offline = p_yes(LocalJudge(MODEL, "cpu").ask(asked))
    found = p_yes(online.ask(asked))
    online.close()
    assert max(abs(a - b) for a, b in zip(found, offline, strict=True)) < 1e-2
    assert min(found) < 0.1
    assert max(found) > 0.9


def test_nobody_is_let_in_without_the_token(server: ManagedServer):
    assert httpx.get(f"{server.url}/v1/models", trust_env=False).status_code == 401


def test_it_sleeps_between_steps_and_is_woken_by_the_next_question(
    server: ManagedServer, monkeypatch
):
    asked = questions(4)
    scorer = client(server, monkeypatch, vllm=judge(vllm={"sleep": True}).vllm)
    before = p_yes(scorer.ask(asked))
    scorer.rest(is_main=True)
    assert is_sleeping(server)
    assert p_yes(scorer.ask(asked)) == pytest.approx(before, abs=1e-6)
    assert not is_sleeping(server)
    scorer.close()


def is_sleeping(server: ManagedServer) -> bool:
    answer = httpx.get(f"{server.url}/is_sleeping", trust_env=False)
    return bool(answer.json()["is_sleeping"])


@pytest.mark.parametrize("victim", ["server", "engine"])
def test_killed_it_comes_back_on_its_port_and_questions_wait_for_it(
    server: ManagedServer, monkeypatch, victim
):
    asked = questions(4)
    scorer = client(server, monkeypatch, retries=1000)
    before, restarts, url = p_yes(scorer.ask(asked)), server.restarts, server.url
    old = family(server.pid)
    killed = old[0] if victim == "server" else next(one for one in old if "Engine" in one.name())
    killed.send_signal(signal.SIGKILL)
    wait_until(lambda: not server.is_ready or server.restarts > restarts, 60)
    # Asked in the outage; answered when it is back.
    assert p_yes(scorer.ask(asked)) == pytest.approx(before, abs=1e-6)
    until_ready(server)
    assert (server.restarts, server.url) == (restarts + 1, url)
    assert gone(old)
    scorer.close()


STARTER = """
import sys, time
from pathlib import Path
from tests.vllm.test_vllm import judge, managed
server = managed(Path(sys.argv[1]), judge())
server.start()
time.sleep(600)
"""


def test_nothing_is_left_of_it_when_its_starter_is_killed(tmp_path: Path):
    """Killed while it comes up: no `finally` runs, only the guard is there to reap."""
    root = repository_root()
    path = os.pathsep.join([str(root / "src"), str(root)])
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=root,
    )
    root_process = psutil.Process(starter.pid)
    try:
        # Its engine is there, too: nothing else starts a second generation.
        wait_until(lambda: len(root_process.children(recursive=True)) > 3, UP_SECONDS)
        processes = root_process.children(recursive=True)
    finally:
        starter.kill()
        starter.wait()
    wait_until(lambda: gone(processes), 60)


def test_what_its_command_line_does_not_take_is_a_bad_configuration(tmp_path: Path):
    server = managed(tmp_path, judge(vllm={**SMALL, "arguments": ["--no-such-option"]}))
    server.start()
    try:
        wait_until(lambda: server.problem is not None, UP_SECONDS)
        assert isinstance(server.problem, ConfigError)
        assert "--no-such-option" in str(server.problem)
    finally:
        server.stop()
