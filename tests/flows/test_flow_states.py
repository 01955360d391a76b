"""What an error means for a flow run, and which runs nobody works on any more."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import CancelledRun
from prefect.states import Cancelling, Completed, Pending, Running

from atelier.config.resolve import resolve
from atelier.errors import ConfigError, PlanError, Stopped
from atelier.processes.host import this_host
from atelier.processes.records import identity
from atelier.stages.train import TrainerCancelled, TrainerCrashed
from flows.local_platform.reconcile import PENDING_SECONDS, SILENT_SECONDS, is_abandoned
from tasks import outcome, quiet_errors, slots
from tasks.identity import ATTEMPT, HOST, PID, STARTED


@pytest.mark.parametrize(
    ("error", "state", "resumable"),
    [
        (ConfigError("no such key"), "Failed", False),
        (PlanError("cannot work"), "Failed", False),
        (Stopped("no scores"), "Stopped", True),
        (TrainerCancelled("ended"), "Cancelled", True),
        (TrainerCrashed("too often"), "Crashed", True),
        (RuntimeError("a bug"), "Crashed", True),
    ],
)
def test_an_error_leads_to_a_state_that_says_how_to_go_on(monkeypatch, error, state, resumable):
    monkeypatch.setattr(outcome, "deployment", SimpleNamespace(id="some deployment"))
    monkeypatch.setattr(
        outcome, "flow_run", SimpleNamespace(id="4711", flow_name="grpo", parameters={})
    )
    found = outcome.state_of(error)
    assert found.name == state
    assert str(error) in found.message
    assert ("prefect flow-run retry 4711" in found.message) == resumable


@pytest.mark.parametrize(
    ("error", "retried"),
    [(RuntimeError("a bug"), True), (Stopped("no scores"), False), (ConfigError("bad"), False)],
)
def test_only_crashes_are_retried(error, retried):
    state = SimpleNamespace(result=lambda raise_on_failure: error)
    assert outcome.can_be_retried(None, None, state) is retried


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ConfigError("bad"), False),
        (CancelledRun("cancelled"), False),
        (None, False),
        (RuntimeError("a bug"), True),
    ],
)
def test_a_traceback_is_logged_of_crashes_only(error, kept):
    quiet_errors.without_tracebacks()
    for name in quiet_errors.LOGGERS:
        log = logging.getLogger(name)
        words, exception = ("Finished", ()), (type(error), error, None)
        assert log.filter(log.makeRecord(name, logging.ERROR, "", 0, *words, None))
        assert (
            bool(log.filter(log.makeRecord(name, logging.ERROR, "", 0, *words, exception))) is kept
        )


def flow_run(state, age: float = 0.0, **labels) -> FlowRun:
    own = {HOST: this_host(), ATTEMPT: 2, PID: 0, STARTED: 0.0}
    state.timestamp = datetime.now(UTC) - timedelta(seconds=age)
    given = {f"atelier.{name}": value for name, value in labels.items()}
    return FlowRun(flow_id=uuid4(), state=state, run_count=2, labels={**own, **given})


def test_a_run_is_abandoned_when_its_process_is_gone():
    me = identity(os.getpid())
    assert not is_abandoned(flow_run(Running(), **me))
    assert is_abandoned(flow_run(Running(), pid=me["pid"], started=me["started"] - 60))
    assert is_abandoned(flow_run(Cancelling(), pid=2**22, started=1.0))


def test_a_run_is_left_alone_while_it_may_live():
    assert not is_abandoned(flow_run(Completed(), pid=2**22))
    assert not is_abandoned(flow_run(Running(), host="elsewhere", pid=2**22, age=1e6))
    # What it says of itself is of its last attempt: the new one has just begun.
    assert not is_abandoned(flow_run(Running(), attempt=1, pid=2**22))
    assert is_abandoned(flow_run(Running(), attempt=1, pid=2**22, age=SILENT_SECONDS + 1))
    assert not is_abandoned(flow_run(Pending(), pid=2**22, age=SILENT_SECONDS + 1))
    assert is_abandoned(flow_run(Pending(), pid=2**22, age=PENDING_SECONDS + 1))


@pytest.mark.parametrize(
    ("device", "gpus", "needed"),
    [("cpu", 0, 1), ("auto", 0, 1), ("cpu", 8, 0), ("auto", 8, 4), ("cuda", 8, 4)],
)
def test_a_rank_wants_a_gpu_each_and_a_cpu_stands_in_for_one(monkeypatch, device, gpus, needed):
    monkeypatch.setattr(slots, "visible_gpus", lambda: ["gpu"] * gpus)
    config = resolve("tiny/base", [f"launch.device={device}", "launch.processes=4"])
    assert slots.slots_needed(config) == needed
