"""Rewards and judges of others are looked for before a run makes images."""

import socket
import threading
import time

import pytest

from atelier.config.digest import scorer_digest
from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.sections.rewards import JpegConfig
from atelier.data.prompts import Prompt, write_prompts
from atelier.errors import ConfigError, Stopped
from atelier.stages import baseline, frame, remote_servers
from atelier.stages.remote_servers import require_answers
from atelier.tracking.run_directory import RunDirectory
from tests.support.judge_endpoint import judge_endpoint
from tests.support.patience import at_once
from tests.support.reward_services import NAME, service

REWARD = f"rewards.{NAME}"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(remote_servers, "POLL_SECONDS", 0.05)


def configured(*overrides):
    return resolve("tiny/base", ["rewards.ocr=null", f"{REWARD}.weight=1.0", *overrides])


def remote_reward(url, seconds=1.0):
    return (
        f"{REWARD}.placement=remote",
        f"{REWARD}.urls=[{url}]",
        f"{REWARD}.first_answer={seconds}",
    )


def remote_judge(url, seconds=1.0):
    values = f"model: m, placement: remote, urls: [{url}], first_answer: {seconds}"
    return (f"judges.far={{{values}}}", "rewards.yes_no.judge=far")


def test_every_server_that_draws_completions_is_looked_for(free_tcp_port):
    nobody = f"http://127.0.0.1:{free_tcp_port}"
    with judge_endpoint() as endpoint:
        there = endpoint.url.removesuffix("/v1")
        overrides = (
            "policy.family=qwen",
            "algorithm.kl=k3",
            "rollout.completion.backend=vllm",
            "rollout.sampler.placement=remote",
            "rollout.sampler.first_answer=0.5",
        )
        require_answers(configured(*overrides, f"rollout.sampler.urls=[{there}]"))
        both = configured(*overrides, f"rollout.sampler.urls=[{there}, {nobody}]")
        with pytest.raises(Stopped, match=rf"rollout\.sampler has not .*: {nobody}/v1: "):
            require_answers(both)
        require_answers(both, rewards=False)  # no stage but training asks it


def test_what_has_never_answered_stops_the_run_all_of_it_named_at_once(free_tcp_port, caplog):
    nobody = f"http://127.0.0.1:{free_tcp_port}"
    config = configured(*remote_reward(nobody), *remote_judge(f"{nobody}/v1"))
    with pytest.raises(Stopped) as stopped, at_once():
        require_answers(config)
    text = str(stopped.value)
    for key, url in ((REWARD, nobody), ("judges.far", f"{nobody}/v1")):
        assert f"{key} has not answered within 1 s ({key}.first_answer): {url}: " in text
        assert f"is it started, and is {key}.urls right? Then resume the run" in text
        (line,) = [one.getMessage() for one in caplog.records if key in one.getMessage()]
        assert line.startswith(f"{key} does not answer: {url}: ")
        assert "waited for since" in line
        assert "until" in line


def test_the_baseline_looks_before_it_makes_an_image(tmp_path, free_tcp_port, monkeypatch):
    monkeypatch.setattr(frame.mirroring, "follow", lambda run: None)
    run = RunDirectory(tmp_path)
    write_stage_configs(configured(*remote_reward(f"http://127.0.0.1:{free_tcp_port}")), run)
    write_prompts(run.data / "heldout.parquet", [Prompt(0, 0, "a red dot", {})])
    with pytest.raises(Stopped, match=rf"{REWARD} has not answered"):
        baseline.run(run)
    assert not (run.baseline / "images").exists()


def test_one_that_comes_in_time_is_waited_for(free_tcp_port):
    """A judge that answers something, be it 404, is there; so is one of two services."""
    with judge_endpoint() as endpoint, socket.create_server(("127.0.0.1", 0)) as other:
        nobody = f"http://127.0.0.1:{other.getsockname()[1]}"
        other.close()
        late = f"http://127.0.0.1:{free_tcp_port}"
        config = configured(
            *remote_reward(f"{nobody}, {late}", 30.0), *remote_judge(endpoint.url, 30.0)
        )
        looking = threading.Thread(target=require_answers, args=(config,))
        looking.start()
        time.sleep(0.5)
        assert looking.is_alive()
        digest = scorer_digest(NAME, JpegConfig())
        with service(digest=digest, port=free_tcp_port):
            looking.join(20)
            assert not looking.is_alive()
        assert not endpoint.calls, "it is asked nothing that costs"


def test_a_service_of_another_configuration_is_refused():
    with service(digest="0" * 64) as url, pytest.raises(ConfigError, match="configuration 0000"):
        require_answers(configured(*remote_reward(url)))


def test_a_judges_token_that_is_not_set_is_found_out(monkeypatch):
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    config = configured(
        *remote_judge("http://127.0.0.1:1/v1"), "judges.far.token_env=NO_SUCH_TOKEN"
    )
    with pytest.raises(ConfigError, match=r"judges\.far\.token_env: NO_SUCH_TOKEN"):
        require_answers(config)


def test_nobody_looks_for_what_this_run_does_not_ask(free_tcp_port):
    """No patience; a judge that no reward asks; rewards, where only held-out images are scored."""
    nobody = f"http://127.0.0.1:{free_tcp_port}"
    require_answers(configured(*remote_reward(nobody, 0.0), *remote_judge(f"{nobody}/v1", 0.0)))
    require_answers(configured(remote_judge(f"{nobody}/v1")[0]))
    require_answers(configured(*remote_reward(nobody)), rewards=False)
