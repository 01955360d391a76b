import logging

import pytest

from atelier.config.resolve import resolve
from atelier.errors import ConfigError, PlanError, Stopped
from atelier.stages import train
from atelier.stages.nodes.meeting import Meeting
from atelier.stages.servers.run_servers import RunServers
from atelier.tracking.run_directory import RunDirectory

ROOT = train.repository_root()


@pytest.fixture
def supervise(tmp_path, monkeypatch, caplog):
    """Supervise trainers that end with the given codes; returns how many lives there were."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")
    monkeypatch.setattr(train, "POLL_SECONDS", 0.05)
    logging.getLogger("atelier").propagate = True
    caplog.set_level(logging.INFO, "atelier")
    counter = tmp_path / "lives"

    def run(codes, *words, max_restarts=2):
        command = ["tests.support.fake_trainer", str(counter), codes, *words]
        monkeypatch.setattr(train, "trainer_command", lambda run, config, place: command)
        config = resolve("tiny/base", [f"launch.max_restarts={max_restarts}"])
        run_directory = RunDirectory(tmp_path)
        services = RunServers(run_directory, config)  # none: the reward is in process
        nodes = Meeting(run_directory, config)  # no others
        train._supervise(run_directory, config, services, nodes)

    run.lives = lambda: int(counter.read_text())
    return run


def test_a_crash_is_followed_by_a_new_life(supervise, caplog):
    supervise("-9,1,0")
    assert supervise.lives() == 3
    assert "restart 1 of 2" in caplog.text
    assert "exit code 137" in caplog.text
    assert [m for m in caplog.messages if m.startswith("life")] == ["life 0", "life 1", "life 2"]


def test_too_many_crashes_are_an_error_with_the_last_words(supervise):
    with pytest.raises(train.TrainerCrashed, match=r"crashed 2 times .*max_restarts=1.*: boom\."):
        supervise("1,1,1", "RuntimeError: boom", max_restarts=1)
    assert supervise.lives() == 2


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("2", ConfigError, "ConfigError: policy.path: nothing there"),
        ("3", PlanError, "PlanError: this plan cannot work"),
        ("75", Stopped, "Stopped: step 3: no scores"),
        ("143", train.TrainerCancelled, "W1127 23:53:28.3 1 torch/x.py:1] Received 15"),
    ],
)
def test_an_end_that_was_meant_is_not_restarted(supervise, code, kind, words):
    with pytest.raises(kind) as caught:
        supervise(f"{code},0", words)
    assert supervise.lives() == 1
    assert caught.value.exit_code == int(code)
    if code != "143":
        assert str(caught.value) == words.partition(": ")[2]


def test_cpu_threads_are_shared_by_the_ranks_and_telemetry_is_off(monkeypatch):
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    config = resolve("tiny/base", ["launch.threads=8", "launch.processes=4"])
    environment = train.trainer_environment(config)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert environment.keys() >= {"PATH"}


def test_last_words_are_those_of_the_life_that_ended(supervise, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/trainer.log").write_text("Stopped: step 3: only 0% have a score\n")
    with pytest.raises(train.TrainerCrashed, match=r"Last words: step 4\. All of"):
        supervise("-9", "step 4", max_restarts=0)


def test_a_stop_that_said_nothing_does_not_repeat_an_earlier_one(supervise, tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/trainer.log").write_text("Stopped: step 3: only 0% have a score\n")
    with pytest.raises(Stopped, match="the trainer stopped itself"):
        supervise("75", "step 4")
