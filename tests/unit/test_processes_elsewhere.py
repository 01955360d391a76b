"""Records of processes of another machine, in a folder that both share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from prefect.client.schemas.objects import FlowRun

from atelier.processes import host, leftovers, locks
from atelier.processes.leftovers import clean_up
from atelier.processes.records import TOKEN, identity, is_alive, is_elsewhere, read_record
from atelier.retention.survey import survey
from atelier.tracking.run_directory import RunDirectory, read_json_object, write_json
from tasks.identity import ATTEMPT, HOST, PID, STARTED, ProcessIdentity, process_of
from tests.support.patience import PATIENCE

ELSEWHERE = "another/01234567"


@pytest.fixture(name="helper")
def _helper() -> Iterator[psutil.Process]:
    """A node that another machine's launcher has started here, with that one's environment."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, env={**os.environ, TOKEN: "of the launcher"}) as process:
        yield psutil.Process(process.pid)
        process.kill()


def written(folder: Path, owner: dict[str, Any], **more: Any) -> Path:
    path = folder / "run" / "processes" / "launcher.json"
    write_json(path, {"token": "of the launcher", "guard": owner, "owner": owner, **more})
    return path


def dead(where: str) -> dict[str, Any]:
    """A process of a machine, whose pid is nobody's here."""
    return {"host": where, "pid": 2**22 + 1, "started": 1.0}


def test_a_name_alone_is_no_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    own = host.this_host()
    assert is_elsewhere(identity(os.getpid())) is False
    monkeypatch.setattr(host, "_machine", lambda: "other")
    assert host.this_host() != own


def test_pids_of_another_namespace_are_another_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """They counted as dead, and of this machine: what lived was ended or written over."""
    own = identity(os.getpid())
    host._machine.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(host, "_pid_namespace", lambda: "pid:[1]")
        assert is_elsewhere(own)
    host._machine.cache_clear()
    assert not is_elsewhere(own)


def test_what_another_machine_has_started_is_not_ended(
    tmp_path: Path, helper: psutil.Process
) -> None:
    """Its guard's pid is nobody's here, which is no sign that it is dead."""
    path = written(tmp_path, dead(ELSEWHERE))
    assert clean_up(tmp_path) == []
    assert "ended" not in read_json_object(path)
    assert helper.is_running()
    written(tmp_path, dead(host.this_host()))
    (line,) = clean_up(tmp_path)
    assert "ended 1 processes" in line
    helper.wait(PATIENCE)


def test_a_guard_of_another_machine_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid may be a living process's here."""
    owner = dead(ELSEWHERE)
    written(tmp_path, owner, guard=identity(os.getpid()) | {"host": ELSEWHERE})
    monkeypatch.setattr(leftovers.time, "sleep", lambda _: pytest.fail("it is waited for"))
    assert clean_up(tmp_path) == []


def test_a_run_that_another_machine_may_write_is_left_alone_and_says_whose(tmp_path: Path) -> None:
    path = written(tmp_path, dead(ELSEWHERE))
    write_json(tmp_path / "run" / "run.json", {"format": 1})
    _age(tmp_path / "run")
    ((one,), _) = survey(tmp_path)
    assert "of machine another/01234567 may run for it" in (one.busy or "")
    assert "remove processes/launcher.json" in (one.busy or "")
    path.unlink()
    ((one,), _) = survey(tmp_path)
    assert one.busy is None


def _age(folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))


def test_a_record_that_names_no_machine_is_none(tmp_path: Path) -> None:
    process = {"pid": 1, "started": 1.0}
    assert read_record(written(tmp_path, process)) is None


@pytest.mark.parametrize(
    "odd",
    [
        *({"pid": pid} for pid in ("1", -1, 0, None, 2**70, 1.5, [1], True)),
        *({"started": started} for started in ("x", None, [1], float("nan"), False)),
        {"host": 5},
    ],
)
def test_odd_records_are_none(tmp_path: Path, odd: dict[str, Any]) -> None:
    """They ended the cleaning up in a traceback, and with it whatever was to start."""
    good = dead(host.this_host())
    for guard, owner in ((good | odd, good), (good, good | odd)):
        path = written(tmp_path, owner, guard=guard)
        assert read_record(path) is None
        assert clean_up(tmp_path) == []


def test_a_pid_says_nothing_of_another_machine() -> None:
    own = identity(os.getpid())
    assert is_alive(own)
    assert not is_alive(own | {"host": ELSEWHERE})
    assert not ProcessIdentity(**own | {"host": ELSEWHERE}).is_gone
    assert ProcessIdentity(**dead(host.this_host())).is_gone


LABELS = {HOST: ELSEWHERE, PID: 7, STARTED: 2.5, ATTEMPT: 1}


@pytest.mark.parametrize(
    "odd", [{PID: "seven"}, {STARTED: "now"}, {HOST: 5}, {HOST: None}, {PID: None}, {ATTEMPT: 2}]
)
def test_labels_that_no_run_of_ours_wrote_name_no_process(odd: dict[str, Any]) -> None:
    """One of them ended `down`, and the clean-up of other runs, in a traceback."""

    def process(labels: dict[str, Any]) -> ProcessIdentity | None:
        kept = {name: value for name, value in labels.items() if value is not None}
        return process_of(FlowRun(flow_id=uuid4(), run_count=1, labels=kept))

    assert process(LABELS) == ProcessIdentity(ELSEWHERE, 7, 2.5)
    assert process(LABELS | odd) is None


def test_a_lock_says_the_machine_of_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks.socket, "gethostname", lambda: "node-7")
    run = RunDirectory(tmp_path)
    with locks.hold(run.train / "lock"):
        assert locks.holder(run.train / "lock") == f"{os.getpid()} on node-7"
        with locks.hold(run.train / "lock") as other:
            assert other == f"{os.getpid()} on node-7"
