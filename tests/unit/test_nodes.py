"""Several nodes: what is planned, how they meet, and how one notices that another is gone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import pytest

from atelier.background import BackgroundLoop
from atelier.config.nodes_token import TOKEN_VARIABLE, board_token
from atelier.config.placement import gpus_wanted, training_gpus
from atelier.config.plan import plan
from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError, PlanError, Stopped
from atelier.processes.gpus import claim_gpus
from atelier.rewards.client.transport import Reply
from atelier.stages.log_tail import LastError
from atelier.stages.nodes import helper, likeness, meeting, service, visitor
from atelier.stages.nodes.board import NodeGone
from atelier.stages.nodes.meeting import Ending, Meeting, exit_code
from atelier.stages.nodes.service import BODY_BYTES
from atelier.stages.nodes.visitor import Visitor, why_silent
from atelier.stages.run_file import check_opening, write_run
from atelier.tracking.run_directory import RunDirectory, read_json_object
from flows.local_platform.loopback import free_port
from tests.support.free_ports import meeting_port
from tests.support.patience import FOR_EVER, PATIENCE, at_once


def config_of(*overrides: str, recipe: str = "tiny/base") -> RunConfig:
    return resolve(recipe, overrides, Path(os.devnull))


# Plans -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompts", [32, 64, 96, 320])
def test_four_nodes_of_eight_take_any_step_that_divides(prompts: int) -> None:
    """256 images of 8 could not start there on more than 8 GPUs."""
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


def test_the_plan_warns_of_an_address_that_only_this_machine_has(monkeypatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
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
    monkeypatch.setattr(visitor, "ANSWER_SECONDS", 5.0)
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def two_nodes(folder: Path, *overrides: str, nodes: int = 2) -> tuple[RunDirectory, RunConfig]:
    run = RunDirectory(folder)
    port = f"launch.master_port={meeting_port()}"
    config = config_of(f"launch.nodes={nodes}", "launch.device=cpu", port, *overrides)
    write_stage_configs(config, run)
    write_run(run, config)
    return run, config


@contextmanager
def visit(config: RunConfig, token: str | None = None) -> Iterator[Visitor]:
    with Visitor(config.launch.master_address, config.launch.master_port, token) as there:
        yield there


@contextmanager
def seated(board: Visitor, rank: int | None = None, nodes: int = 2) -> Iterator[tuple[int, str]]:
    """A helper's seat, of which is heard until the end or until its token is put in `silent`."""
    with (
        helper._seat(board, nodes, rank) as (own, token),
        BackgroundLoop("beats", lambda: _beat(board, token)),
    ):
        yield own, token


silent: set[str] = set()


def _beat(board: Visitor, token: str) -> float:
    if token not in silent:
        with suppress(NodeGone):
            board.count(f"beat/{token}", 1)
    return 0.1


def test_alone_nothing_listens(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path, nodes=1)
    with Meeting(run, config) as nodes, nodes.life() as life:
        assert why_silent("127.0.0.1", config.launch.master_port) is not None
        assert (life.place, life.failure()) == ((), None)
        here = Ending(7, LastError("E", "x"))
        assert life.ending(here) is here


def test_a_life_begins_once_all_are_there_and_its_end_is_told(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config) as nodes, visit(config) as other, ExitStack() as later:
        told = other.read("run")
        assert told["root"] == str(tmp_path)
        assert told["proof"] == read_json_object(run.processes / "meeting.json")["proof"]
        timer = threading.Timer(0.3, later.enter_context, [seated(other)])
        began = time.monotonic()
        timer.start()
        with nodes.life() as life:
            assert time.monotonic() - began > 0.25
            newest = other.read("life")
            assert newest["number"] == 1
            assert newest["id"] in life.place
            assert newest["crew"] == {"1": other.read("seat/1")}
            assert life.place[-1] == str(config.launch.master_port + 1)
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


def test_a_node_of_which_nothing_is_heard_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = two_nodes(tmp_path)
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], sleep=time.sleep)
    monkeypatch.setattr(meeting, "time", clock)
    monkeypatch.setattr(meeting, "SILENT_SECONDS", FOR_EVER)
    with (
        Meeting(run, config) as nodes,
        visit(config) as other,
        seated(other) as (_, token),
        nodes.life() as life,
    ):
        for _ in range(3):
            assert life.failure() is None
            heard, end = other.count(f"beat/{token}"), time.monotonic() + PATIENCE
            while other.count(f"beat/{token}") == heard:
                assert time.monotonic() < end
                time.sleep(0.01)
            later[0] += 0.9 * FOR_EVER
        silent.add(token)
        assert life.failure() is None  # the last beat is counted
        gone, tries = None, 0
        while gone is None and tries < 5:  # a beat that was under way is counted, too
            later[0] += 0.9 * FOR_EVER
            gone, tries = life.failure(), tries + 1
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
    with (
        Meeting(run, config) as nodes,
        visit(config) as other,
        seated(other) as (_, token),
        nodes.life() as life,
    ):
        said = {"life": 1, "code": there, "kind": "Stopped", "text": "the disk is full"}
        other.put(f"ended/{token}", said)
        own = None if here is None else Ending(here, LastError(None, "connection reset"))
        ending = life.ending(own)
        assert ending.code == expected
        assert ("node 1: the disk is full" in ending.error.text) == (expected == there)


def test_a_seat_is_taken_once_and_free_after(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), visit(config) as other:
        with seated(other, 1):
            for rank in (1, None):
                with (
                    pytest.raises(ConfigError, match=r"launch\.node_rank: .* there already"),
                    helper._seat(other, 2, rank),
                ):
                    pytest.fail("two are node 1")
        with seated(other) as (rank, _):
            assert rank == 1


def test_a_node_that_was_replaced_leaves_the_seat_to_the_other(tmp_path: Path) -> None:
    """It removed the other's, and the run ended with it."""
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), visit(config) as other:
        with seated(other):
            other.put("seat/1", "another")
        assert other.read("seat/1") == "another"
        other.remove_if("seat/1", "another")
        assert other.read("seat/1") is None


def test_a_node_that_was_suspended_sits_down_again_or_leaves(tmp_path: Path) -> None:
    """It stayed for ever, and no life began with it."""
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), visit(config) as other:
        suspended = helper._Helper(other, run, config, 1, "own")
        assert not suspended._is_closed()
        assert other.read("seat/1") == "own"
        other.put("seat/1", "another")
        with pytest.raises(Stopped, match=r"another one is node 1 of the run now"):
            suspended.help()


def test_the_seat_of_a_node_that_was_killed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused until node 0 had noticed, though the next start would have helped."""
    monkeypatch.setattr(meeting, "SILENT_SECONDS", 0.5)
    run, config = two_nodes(tmp_path, "launch.join_limit=10")
    with Meeting(run, config) as nodes, visit(config) as other:
        other.put("seat/1", "killed")
        other.count("beat/killed", 1)
        taken = []

        def come() -> None:
            with seated(other, 1) as (_, token):
                taken.append(token)
                over.wait(10)

        over = threading.Event()
        thread = threading.Thread(target=come)
        thread.start()
        with nodes.life() as life:
            assert life.failure() is None
            assert other.read("life")["crew"] == {"1": taken[0]}
        over.set()
        thread.join()


def test_a_node_that_was_killed_a_moment_ago_begins_no_life(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path, "launch.join_limit=0.3")
    with (
        Meeting(run, config) as nodes,
        visit(config) as other,
        helper._seat(other, 2, None),
        pytest.raises(Stopped, match="1 of launch"),
        nodes.life(),
    ):
        pytest.fail("it began with a node that is not heard of")


@pytest.mark.parametrize(
    "said",
    [
        {"life": 1},
        "gone",
        [1],
        {"life": 1, "code": "a", "kind": None, "text": ""},
        {"life": 1, "code": 2, "kind": 5, "text": ""},
        {"life": 1, "code": 2, "kind": None, "text": None},
    ],
)
def test_rubbish_about_an_end_is_no_news(tmp_path: Path, said: object) -> None:
    """It crashed node 0, and the run."""
    run, config = two_nodes(tmp_path)
    with (
        Meeting(run, config) as nodes,
        visit(config) as other,
        seated(other) as (_, token),
        nodes.life() as life,
    ):
        other.put(f"ended/{token}", said)
        assert life.failure() is None


def test_rubbish_in_a_seat_is_nobody(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config) as nodes, visit(config) as other:
        other.put("seat/1", ["x"])
        assert nodes._tokens() == []
        assert other.read("seat/1") is None
        other.put("seat/1", "own")
        for beat in ("z", 1.5, None, {}):
            other.put("beat/own", beat)
            assert nodes._tokens() == [(1, "own")]
        assert nodes._last_heard("own") < time.monotonic()


def test_a_node_that_comes_in_the_place_of_another_does_not_share_its_life(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with (
        Meeting(run, config) as nodes,
        visit(config) as other,
        seated(other) as (_, _),
        nodes.life() as life,
    ):
        assert life.failure() is None
        other.put("seat/1", "another")
        other.count("beat/another", 1)
        assert life.failure() is not None


def test_a_rank_that_the_run_has_not_is_refused_at_once(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with (
        Meeting(run, config),
        pytest.raises(ConfigError, match=r"launch\.node_rank: 5 .*launch\.nodes 2: 1 to 1; give"),
    ):
        helper.help_train("127.0.0.1", config.launch.master_port, 5)


def test_another_directory_is_refused(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path / "one")
    with Meeting(run, config), visit(config) as other:
        told = other.read("run")
        assert helper._shared_directory(told).root == run.root
        with pytest.raises(ConfigError, match="not the directory that node 0 writes"):
            helper._shared_directory(told | {"proof": "another"})
        with pytest.raises(ConfigError, match="not the directory"):
            helper._shared_directory(told | {"root": str(tmp_path / "nowhere")})


def test_a_node_zero_that_is_gone_is_noticed(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with ExitStack() as later:
        with Meeting(run, config):
            other = later.enter_context(visit(config))
            other.count("beat/x", 1)
        with pytest.raises(NodeGone, match="resume its run"), at_once():
            other.count("beat/x", 1)


@contextmanager
def hanging() -> Iterator[int]:
    """A port that takes connections and never answers, as a node that was suspended does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_node_zero_that_hangs_is_noticed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel takes the connection, and a call waited for ever."""
    monkeypatch.setattr(visitor, "ANSWER_SECONDS", 1.0)
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), visit(config) as other, hanging() as port:
        other._url = f"http://127.0.0.1:{port}/"
        other._port = port
        with pytest.raises(NodeGone), at_once():
            other.read("life")
    with hanging() as port, pytest.raises(ConfigError, match="no meeting place of a run"):
        Visitor("127.0.0.1", port, None)


def test_who_has_found_node_zero_gone_asks_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper left after a minute in the place of half of one: it gave its seat back first."""
    monkeypatch.setattr(visitor, "ANSWER_SECONDS", 0.3)
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), visit(config) as other, hanging() as port:
        seat = helper._seat(other, 2, 1)
        seat.__enter__()
        other._url, other._port = f"http://127.0.0.1:{port}/", port
        with pytest.raises(NodeGone) as gone:
            other.read("closed")
        monkeypatch.setattr(other._transport, "ask", lambda *_, **__: pytest.fail("it asks"))
        assert not seat.__exit__(NodeGone, gone.value, None)


def test_a_node_waits_for_node_zero_no_longer_than_told(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with pytest.raises(Stopped, match=rf"127\.0\.0\.1:{port} \(nobody listens .*--wait"):
        helper.help_train("127.0.0.1", port, wait=0.2)


# What may be asked ------------------------------------------------------------------------------


def test_beyond_loopback_a_token_is_needed_and_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = two_nodes(tmp_path, "launch.master_address=0.0.0.0")
    port = config.launch.master_port
    launch = ("launch.nodes=2", "launch.master_address=0.0.0.0", "train.prompts_per_step=16")
    for begin in (
        lambda: Meeting(run, config).__enter__(),
        lambda: check_opening("tiny/base", launch, None, None),
    ):
        with pytest.raises(ConfigError, match=rf"launch\.master_address: .*{TOKEN_VARIABLE}"):
            begin()
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with Meeting(run, config):
        with visit(config, "secret") as other:
            assert other.read("run")["nodes"] == 2
        for wrong in ("another", None):
            with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE}: node 0 at .*{port} wants"):
                Visitor("127.0.0.1", port, wrong)


def test_a_token_that_is_none_says_so_at_once(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), pytest.raises(ConfigError, match=f"or {TOKEN_VARIABLE}"):
        Visitor("127.0.0.1", config.launch.master_port, "two\nlines")


def test_a_node_without_a_token_says_so_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for node 0, for hours, and was refused then."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setattr(helper, "why_silent", lambda *_: pytest.fail("node 0 is asked for"))
    with pytest.raises(ConfigError, match=r"--address: 192\.0\.2\.1 .* set it in .* all nodes"):
        helper.help_train("192.0.2.1", 29700)


def test_a_plan_of_several_machines_warns_of_a_missing_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    several = (
        *("launch.nodes=2", "launch.master_address=192.0.2.1"),
        *("train.prompts_per_step=16", "rollout.group_size=16"),
    )

    def warned() -> bool:
        return any(TOKEN_VARIABLE in one for one in plan(resolve("tiny/base", several)).warnings)

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert warned()
    monkeypatch.setenv(TOKEN_VARIABLE, "two words")
    assert warned()
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    assert not warned()


@pytest.mark.parametrize(
    "token", ["  ", "a secret ", "two\nlines", "gehéim", "x" * 4097, "x\udc80"]
)
def test_a_token_that_no_request_can_carry_is_refused_before_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """Node 0 started with it, and no other node could come."""
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    launch = ("launch.nodes=2", "train.prompts_per_step=16", "rollout.group_size=16")
    for begin in (
        lambda: check_opening("tiny/base", launch, None, None),
        lambda: helper.help_train("127.0.0.1", 1, wait=0.0),
    ):
        with pytest.raises(ConfigError, match=f"{TOKEN_VARIABLE}: what it holds is no") as refusal:
            begin()
        assert not token.strip() or token not in str(refusal.value)
    assert board_token(config_of().launch) is None  # of one node nothing is asked


@contextmanager
def strangers(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say a byte of a request, and no more."""
    with ExitStack() as opened:
        found = []
        for _ in range(count):
            one = opened.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            )
            one.sendall(b"P")
            found.append(one)
        yield found


def test_strangers_keep_neither_threads_nor_nodes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took a thread and a file descriptor, until training ended for want of them."""
    monkeypatch.setattr(service, "CONNECTIONS", 4)
    run, config = two_nodes(tmp_path)
    before = threading.active_count()
    with (
        Meeting(run, config),
        visit(config) as other,
        strangers(config.launch.master_port, 30) as opened,
    ):
        assert other.read("run")["nodes"] == 2
        assert [one.recv(1) for one in opened[:20]] == [b""] * 20
        assert threading.active_count() < before + 15


def test_a_request_has_a_time_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then kept a connection open for ever."""
    monkeypatch.setattr(service, "REQUEST_SECONDS", 0.3)
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), strangers(config.launch.master_port, 1) as (one,):
        began = time.monotonic()
        one.settimeout(0.1)
        ended = False
        while not ended and time.monotonic() - began < PATIENCE:
            with suppress(TimeoutError):
                one.sendall(b"O")
                ended = one.recv(1) == b""
    assert ended


def answering(content: bytes) -> Reply:
    return Reply(200, "OK", {}, content, False)


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"{}",
        b"[1]",
        b'{"root": "/r", "nodes": "x", "proof": "p", "likeness": {}}',
        b'{"root": "/r", "nodes": 2, "proof": "p", "likeness": {"torch": 1}}',
        b"[" * 60_000,
        b"\xff",
    ],
)
def test_a_port_that_answers_with_something_else_is_no_meeting_place(
    monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(Visitor, "_reply", lambda *_: answering(content))
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:7 is no meeting place of a run"):
        Visitor("127.0.0.1", 7, None)


def test_on_loopback_nobody_else_is_listened_to(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config):
        assert why_silent("127.0.0.1", config.launch.master_port) is None
        assert why_silent("127.0.0.2", config.launch.master_port) is not None


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"x" * (BODY_BYTES + 1), {}, 413),
        (b"", {"Content-Length": "many"}, 411),
        (b"[", {}, 400),
        (b'["close", "x"]', {}, 400),
        (b'["read", 1]', {}, 400),
        (b'["count", "run", 1]', {}, 400),
        (b'["read"]', {}, 400),
        (b'["count", "beat/x", Infinity]', {}, 400),
        (b'["count", "beat/x", 1.5]', {}, 400),
        (b'["count", "beat/x", ' + b"9" * 4300 + b"]", {}, 200),
        (b'["count", "beat/x", ' + b"9" * 5000 + b"]", {}, 400),
        (b'["put", "closed", 0]', {}, 400),
        (b'["remove_if", "life", null]', {}, 400),
        (b"", {"Content-Length": "9" * 5000}, 413),
    ],
)
def test_what_is_no_question_is_refused(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), visit(config) as other:
        connection = HTTPConnection("127.0.0.1", config.launch.master_port, timeout=5)
        with closing(connection):
            connection.request("POST", "/", body, headers)
            assert connection.getresponse().status == status
        assert other.read("run")["nodes"] == 2


# What must be the same ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "theirs", "words"),
    [
        ("torch", "1.0", r"torch: 1\.0 on node 0, .* here; install the same"),
        ("deepspeed", None, "deepspeed: none on node 0"),
        (likeness.COMMIT, "0" * 40, "commit: 000000000000 on node 0, .*check out the same"),
        (likeness.SOURCE, "changed", "source files of src/atelier: changed .*commit, or undo"),
        (likeness.CONFIGURATION, "old", "configuration of train: old"),
    ],
)
def test_a_node_that_computes_with_something_else_is_refused(
    tmp_path: Path, name: str, theirs: str | None, words: str
) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config), visit(config) as other:
        told = other.read("run")
        helper._require_likeness(told, config)
        told["likeness"][name] = theirs
        with pytest.raises(ConfigError, match=words):
            helper._require_likeness(told, config)


def test_a_change_that_is_not_committed_is_seen_and_a_missing_git_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = likeness._source(tmp_path)
    assert likeness._source(tmp_path) == before
    (tmp_path / "b.py").write_text("")
    assert likeness._source(tmp_path) != before
    assert likeness.differences({likeness.COMMIT: None}, {likeness.COMMIT: "f" * 40}) == []


# How it ends -------------------------------------------------------------------------------------


class Signalled(BaseException):
    """As Prefect says that its flow run was sent a signal."""

    signal = 15


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SystemExit(143), 143),
        (KeyboardInterrupt(), 130),
        (Signalled(), 143),
        (Stopped("scores"), 75),
        (ValueError("crash"), 1),
    ],
)
def test_other_nodes_are_told_the_exit_code_that_node_zero_ends_with(
    tmp_path: Path, error: BaseException, code: int
) -> None:
    assert exit_code(error) == code
    run, config = two_nodes(tmp_path)
    meet = Meeting(run, config)
    meet.__enter__()
    board = meet._board
    meet.__exit__(type(error), error, None)
    assert board is not None
    assert board.read("closed") == code


def test_nodes_are_let_go_while_node_zero_waits_for_scores(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    with Meeting(run, config) as nodes:
        with ThreadPoolExecutor(1) as pool:
            helping = pool.submit(helper.help_train, "127.0.0.1", config.launch.master_port)
            with visit(config) as other:
                while other.read("seat/1") is None:
                    time.sleep(0.02)
            nodes.release()
            assert helping.result(10) == 0
        assert why_silent("127.0.0.1", config.launch.master_port) is not None


def test_the_agents_port_is_the_one_after_and_has_to_be_free(tmp_path: Path) -> None:
    run, config = two_nodes(tmp_path)
    port = config.launch.master_port + 1
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match=rf"launch\.master_port: {port}, the one after"),
        Meeting(run, config),
    ):
        pytest.fail("torchrun could not listen")
    with pytest.raises(ConfigError, match=r"launch\.master_port"):
        config_of("launch.nodes=2", "launch.master_port=65535")


def test_a_machine_that_does_not_exist_is_an_error_and_no_waiting(monkeypatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
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
