"""Several nodes: what is planned, how they meet, and how one notices that another is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from atelier.config.placement import gpus_wanted, training_gpus
from atelier.config.plan import plan
from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError, PlanError, Stopped
from atelier.processes.gpus import claim_gpus
from atelier.stages.log_tail import LastError
from atelier.stages.nodes import board as boards
from atelier.stages.nodes import helper, meeting
from atelier.stages.nodes.board import Board, NodeGone, free_port, is_listening
from atelier.stages.nodes.meeting import Ending, Meeting
from atelier.stages.run_file import write_run
from atelier.tracking.run_directory import RunDirectory, read_json_object


def config_of(*overrides: str, recipe: str = "tiny/base") -> RunConfig:
    return resolve(recipe, overrides, Path(os.devnull))


# Plans -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [32, 64, 96, 320])
def test_four_nodes_of_eight_take_any_step_that_divides(prompts: int) -> None:
    """Spec deepgen 8.1: 256 images of 8 could not start there on more than 8 GPUs."""
    made = plan(
        config_of(
            *("launch.nodes=4", "launch.processes=8", "rollout.group_size=8"),
            *("rollout.micro_batch_size=8", "train.updates_per_step=1"),
            f"train.prompts_per_step={prompts}",
        )
    )
    assert made.processes == 32
    assert made.accumulation == prompts // 32


def test_a_step_that_cannot_be_shared_by_all_ranks_says_what_can() -> None:
    with pytest.raises(PlanError, match=r"32 process\(es\).*launch\.processes x launch\.nodes"):
        plan(
            config_of(
                *("launch.nodes=4", "launch.processes=8", "rollout.group_size=8"),
                *("rollout.micro_batch_size=8", "train.updates_per_step=1"),
                "train.prompts_per_step=12",
            )
        )


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("rewards.ocr.placement=managed", "rewards.ocr.placement"),
        ("rollout.micro_batch_size=8", None),
    ],
)
def test_a_server_on_loopback_is_refused_where_ranks_of_other_nodes_ask_it(
    override: str, key: str | None
) -> None:
    nodes = ("launch.nodes=2", "train.prompts_per_step=16", "rollout.group_size=16")
    if key is None:
        plan(config_of(*nodes, override))
        return
    plan(config_of(override))
    with pytest.raises(PlanError, match=rf"{key}: a managed server is not reached"):
        plan(config_of(*nodes, override))


def test_gpus_are_those_of_a_node() -> None:
    config = config_of("launch.nodes=4", "launch.processes=8")
    assert gpus_wanted(config) == training_gpus(config) == 8


def test_the_plan_warns_of_an_address_that_only_this_machine_has() -> None:
    nodes = ("launch.nodes=2", "train.prompts_per_step=16", "rollout.group_size=16")
    assert any("launch.master_address" in one for one in plan(config_of(*nodes)).warnings)
    there = plan(config_of(*nodes, "launch.master_address=10.0.0.1")).warnings
    assert not any("launch.master_address" in one for one in there)
    alone = plan(config_of("launch.master_address=10.0.0.1")).warnings
    assert any("launch.master_address: does nothing here" in one for one in alone)


def test_window_draws_of_each_rank_make_the_number_of_all_ranks_part_of_the_digest() -> None:
    from atelier.config.digest import stage_digest

    def digest(*overrides: str) -> str:
        return stage_digest(config_of("rollout.window.scope=rank", *overrides), "train")

    assert digest("launch.nodes=2") == digest("launch.processes=2") != digest()
    shared = [stage_digest(config_of(one), "train") for one in ("launch.nodes=2", "launch.nodes=1")]
    assert shared[0] == shared[1]


def test_locks_of_gpus_are_those_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes may share a checkout, and each has a GPU 0."""
    from atelier.processes import gpus

    monkeypatch.setattr(gpus, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(gpus, "repository_root", lambda: tmp_path)
    monkeypatch.setenv(gpus.VISIBLE, "")
    held = []
    for host in ("one", "two"):
        monkeypatch.setattr(gpus.socket, "gethostname", lambda host=host: host)
        monkeypatch.setattr(gpus, "_claimed", [])
        assert claim_gpus(1) == ["0"]
        held += gpus._claimed
    assert sorted(path.parent.name for path in tmp_path.rglob("*.lock")) == ["one", "two"]
    for lock in held:
        os.close(lock)


# The meeting place -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (meeting, helper):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(meeting, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(meeting, "WORDS_SECONDS", 0.5)
    monkeypatch.setattr(helper, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(helper, "SHARED_SECONDS", 0.5)
    monkeypatch.setattr(boards, "ANSWER_SECONDS", 5.0)


def two_nodes(folder: Path, *overrides: str, nodes: int = 2) -> tuple[RunDirectory, RunConfig]:
    run = RunDirectory(folder)
    port = f"launch.master_port={free_port()}"
    config = config_of(f"launch.nodes={nodes}", "launch.device=cpu", port, *overrides)
    write_stage_configs(config, run)
    write_run(run, config)
    return run, config


def visitor(config: RunConfig) -> Board:
    return Board(config.launch.master_address, config.launch.master_port, keeps=False)


def test_alone_nothing_listens(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path, nodes=1)
    with Meeting(run, config) as nodes, nodes.life() as life:
        assert not is_listening("127.0.0.1", config.launch.master_port)
        assert (life.place, life.failure()) == ((), None)
        here = Ending(7, LastError("E", "x"))
        assert life.ending(here) is here


def test_a_life_begins_once_all_are_there_and_its_end_is_told(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config) as nodes, ExitStack() as later:
        other = visitor(config)
        told = other.read("run")
        assert told["root"] == str(tmp_path)
        assert told["proof"] == read_json_object(run.processes / "meeting.json")["proof"]
        timer = threading.Timer(0.3, later.enter_context, [helper._seat(other, 2, None)])
        began = time.monotonic()
        timer.start()
        with nodes.life() as life:
            assert time.monotonic() - began > 0.25
            newest = other.read("life")
            assert newest["number"] == 1
            assert life.place[-1] == str(newest["port"])
            assert other.read("over") is None
        assert other.read("over") == 1
    assert not (run.processes / "meeting.json").exists()


def test_nodes_that_do_not_come_stop_the_run_resumable(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path, "launch.join_limit=0.3", nodes=3)
    with (
        pytest.raises(Stopped, match=r"1 of launch\.nodes 3 are there .*atelier node --address"),
        Meeting(run, config) as nodes,
        nodes.life(),
    ):
        pytest.fail("it began without them")


def test_a_launcher_that_ends_at_once_stops_the_run_and_names_its_log(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path, "launch.launcher=[sh, -c, 'echo no node; exit 3']")
    with (
        pytest.raises(Stopped, match=r"launch\.launcher: sh ended with exit code 3"),
        Meeting(run, config) as nodes,
        nodes.life(),
    ):
        pytest.fail("it began without them")
    assert "no node" in (run.train / "nodes/launcher.log").read_text()


def test_a_node_of_which_nothing_is_heard_is_gone(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config) as nodes:
        other = visitor(config)
        with helper._seat(other, 2, None) as (_, token), nodes.life() as life:
            for _ in range(8):
                other.count(f"beat/{token}", 1)
                assert life.failure() is None
                time.sleep(0.4)
            time.sleep(2.2)
            gone = life.failure()
            assert gone is not None
            assert "node 1 is gone" in gone.error.text
            assert life.ending(None).code == 1
            assert other.read("seat/1") is None


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        (1, 75, 75),  # ranks lost each other because one stopped itself
        (1, 137, 1),
        (75, 2, 75),
        (0, 1, 0),
        (None, 137, 137),
    ],
)
def test_the_ending_is_that_of_who_meant_it(
    tmp_path: Path, here: int | None, there: int, expected: int
) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config) as nodes:
        other = visitor(config)
        with helper._seat(other, 2, None) as (_, token), nodes.life() as life:
            said = {"life": 1, "code": there, "kind": "Stopped", "text": "the disk is full"}
            other.put(f"ended/{token}", said)
            own = None if here is None else Ending(here, LastError(None, "connection reset"))
            ending = life.ending(own)
            assert ending.code == expected
            assert ("node 1: the disk is full" in ending.error.text) == (expected == there)


def test_a_seat_is_taken_once_and_free_after(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config):
        other = visitor(config)
        with helper._seat(other, 2, 1):
            for rank in (1, None):
                with (
                    pytest.raises(ConfigError, match=r"launch\.node_rank: .* there already"),
                    helper._seat(other, 2, rank),
                ):
                    pytest.fail("two are node 1")
        with helper._seat(other, 2, None) as (rank, _):
            assert rank == 1


def test_another_directory_is_refused(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path / "one")
    with Meeting(run, config):
        told = visitor(config).read("run")
        assert helper._shared_directory(told).root == run.root
        with pytest.raises(ConfigError, match="not the directory that node 0 writes"):
            helper._shared_directory(told | {"proof": "another"})
        with pytest.raises(ConfigError, match="check out the same"):
            helper._shared_directory(told | {"commit": "0" * 40})
        with pytest.raises(ConfigError, match="not the directory"):
            helper._shared_directory(told | {"root": str(tmp_path / "nowhere")})


def test_a_node_zero_that_is_gone_is_noticed(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config):
        other = visitor(config)
        other.count("beat/x", 1)
    with pytest.raises(NodeGone, match="resume its run"):
        other.count("beat/x", 1)


def test_a_machine_that_does_not_exist_is_an_error_and_no_waiting() -> None:
    with pytest.raises(ConfigError, match=r"launch\.master_address: no-such-machine\.invalid"):
        helper.help_train("no-such-machine.invalid", 29700)


def test_a_run_of_another_rank_waits_for_node_zero_and_opens_none(tmp_path: Path) -> None:
    port = free_port()
    variables = {"NNODES": "2", "NODE_RANK": "1", "MASTER_PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier", "run", "--recipe", "tiny/base", "--variables"],
        env={**os.environ, **variables, "ATELIER_RUNS": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    words = next((line for line in process.stdout if "waiting for node 0" in line), "")
    process.terminate()
    process.communicate(timeout=60)
    assert f"127.0.0.1:{port}" in words
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_two_runs_cannot_meet_at_one_port(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with (
        Meeting(run, config),
        pytest.raises(ConfigError, match=r"launch\.master_port: .* cannot be listened on"),
        Meeting(run, config),
    ):
        pytest.fail("both listen")
