"""Flow runs on a real server and worker, killed and cancelled in every way.

The trainer's ranks print nothing and ignore SIGTERM: ranks that print die by accident, of a broken
pipe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from atelier.stages import baseline
from atelier.stages.frame import open_stage, read_record
from atelier.tracking.run_directory import RunDirectory, write_json
from tasks.cancellation import ASK_EVERY_SECONDS
from tasks.slots import TRY_EVERY_SECONDS
from tests.flows.conftest import Place, wait_for_end
from tests.support.runs import make_run
from tests.support.site import Site, guards_of_run, prefect_site, processes_of_run

pytestmark = pytest.mark.slow

SETTINGS = ("launch.processes=2", "train.steps=4")
STOP_SECONDS, STATE_SECONDS = 30.0, 45.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = Place(tmp_path_factory.mktemp("site"))
    with prefect_site(place.root, place.environment, gpu_slots=1) as site:
        yield site
    left = wait_for_end(place.root)
    assert not left, [process.cmdline() for process in left]


@pytest.fixture(scope="module")
def prepared(site: Site) -> RunDirectory:
    """A run that is ready to be trained by two ranks: its baseline counts as done."""
    uri = f"tracking.mlflow_uri={Place(site.root).mlflow_uri}"
    run = make_run(site.root / "prepared", (*SETTINGS, uri))
    stage = open_stage("baseline", run, baseline.inputs, baseline.OUTPUTS)
    when = {"started": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:00:05+00:00"}
    done = {"stage": "baseline", "status": "done", "outputs": {}, "summary": {}, "seconds": 5.0}
    write_json(stage.folder / "stage.json", {**when, **done, "identity": stage._identity()})
    return run


@pytest.fixture
def run(prepared: RunDirectory, site: Site, request: pytest.FixtureRequest) -> Path:
    return copy_of(prepared, site, request.node.name[:60])


def copy_of(prepared: RunDirectory, site: Site, name: str) -> Path:
    ignored = shutil.ignore_patterns("locks", "mlflow.json")
    return Path(shutil.copytree(prepared.root, site.root / "runs" / name, ignore=ignored))


@pytest.fixture
def stubborn(tmp_path: Path) -> Path:
    return tmp_path


def start(site: Site, run: Path, stubborn: Path) -> UUID:
    """A flow run that trains, once its two ranks hang."""
    (stubborn / "hang").touch()
    flow_run = site.submit("train", stubborn, run=run.name)
    wait_for_ranks(site, stubborn, 2)
    return flow_run


def wait_for_ranks(site: Site, stubborn: Path, count: int) -> None:
    site.wait(lambda: len(list(stubborn.glob("rank-*"))) == count)


def assert_gone_in_time(site: Site, flow_run: UUID, since: float, seconds: float) -> None:
    site.wait(lambda: not processes_of_run(flow_run) or time.monotonic() > since + seconds)
    left = processes_of_run(flow_run)
    assert not left, [process.cmdline() for process in left]
    assert time.monotonic() < since + seconds + 1


def assert_cancelled_in_time(site: Site, flow_run: UUID) -> None:
    since = time.monotonic()
    site.cancel(flow_run)
    assert_gone_in_time(site, flow_run, since, STOP_SECONDS)
    site.wait(lambda: site.state(flow_run) == "Cancelled", since + STATE_SECONDS - time.monotonic())


def test_a_cancel_ends_silent_ranks_that_ignore_sigterm(site: Site, run: Path, stubborn: Path):
    flow_run = start(site, run, stubborn)
    assert_cancelled_in_time(site, flow_run)
    time.sleep(6)  # the worker, too, writes a state when the process is gone
    assert site.state(flow_run) == "Cancelled"
    # The worker's message has taken the place of the flow's.
    assert f"prefect flow-run retry {flow_run}" in site.log(flow_run)
    assert "Traceback" not in site.log(flow_run)


def test_a_users_error_is_logged_in_words(site: Site):
    flow_run = site.submit("train", run="nothing")
    site.wait(lambda: site.state(flow_run) == "Failed")
    site.wait(lambda: "no run 'nothing'" in site.log(flow_run) and not processes_of_run(flow_run))
    assert "Traceback" not in site.log(flow_run)


def test_a_cancel_before_the_flow_begins_is_a_cancel(site: Site, run: Path):
    flow_run = site.submit("train", run=run.name)
    site.wait(lambda: site.state(flow_run) == "Submitting")
    site.cancel(flow_run)
    site.wait(lambda: site.state(flow_run) == "Cancelled", STATE_SECONDS)
    assert not processes_of_run(flow_run)


def test_a_cancel_needs_no_worker_and_outlives_the_server(site: Site, run: Path, stubborn: Path):
    flow_run = start(site, run, stubborn)
    site.kill_worker()
    site.kill_server()
    time.sleep(ASK_EVERY_SECONDS + 1)
    site.start_server()
    try:
        assert_cancelled_in_time(site, flow_run)
        assert f"prefect flow-run retry {flow_run}" in site.read(flow_run).state.message
        assert taken_slots(site) == 0
    finally:
        site.start_worker()


def lives(process: psutil.Process) -> bool:
    """A dead process whose parent died, too, stays in the table until init looks after it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_killed_guard_and_killed_flow_leave_nothing_and_a_retry_completes(
    site: Site, run: Path, stubborn: Path
):
    flow_run = start(site, run, stubborn)
    (guard,) = guards_of_run(flow_run)
    ranks = [one for one in processes_of_run(flow_run) if "RANK" in one.environ()]
    assert len(ranks) == 2
    guard.kill()
    wait_for_ranks(site, stubborn, 4)  # the trainer was started again
    assert not any(lives(rank) for rank in ranks)

    since = time.monotonic()
    os.kill(site.pid(flow_run), 9)
    assert_gone_in_time(site, flow_run, since, STATE_SECONDS)
    (stubborn / "pretend").touch()
    (stubborn / "hang").unlink()
    site.wait(lambda: site.state(flow_run) == "Crashed", 30)
    site.retry(flow_run)  # before the worker is done with the attempt that was killed
    site.wait(lambda: site.state(flow_run) in ("Completed", "Failed", "Crashed"), 150)
    ended = site.read(flow_run)
    assert ended.state.is_completed(), ended.state.message
    assert ended.run_count == 2
    twice = [("baseline", "Completed")] * 2
    assert site.task_states(flow_run) == [*twice, ("train", "Completed"), ("train", "Crashed")]
    assert read_record(run / "train")["status"] == "done"
    assert not list(run.glob("train.old-*")), "it went on in the same directory"
    log = site.log(flow_run)
    assert "train: started" in log, "what stages say reaches the run's page"
    assert "train: started" in (run / "flow.log").read_text()


def test_killed_worker_and_flow_leave_no_process_and_no_running_state(
    site: Site, run: Path, stubborn: Path
):
    flow_run = start(site, run, stubborn)
    assert taken_slots(site) == 1
    flow = site.pid(flow_run)
    since = time.monotonic()
    site.kill_worker()
    os.kill(flow, 9)
    try:
        assert_gone_in_time(site, flow_run, since, STATE_SECONDS)
        assert site.state(flow_run) == "Running", "nobody was left to say otherwise"
        assert str(flow_run) in reconcile(site)
        assert site.state(flow_run) == "Crashed"
        assert f"prefect flow-run retry {flow_run}" in site.read(flow_run).state.message
        assert taken_slots(site) == 0
        assert site.task_states(flow_run) == [("baseline", "Completed"), ("train", "Crashed")]
    finally:
        site.start_worker()


def test_a_second_run_waits_for_the_slot_and_a_dead_worker_stops_nobody(
    prepared: RunDirectory, site: Site, stubborn: Path
):
    runs = [copy_of(prepared, site, f"queued-{index}") for index in range(2)]
    first = start(site, runs[0], stubborn)
    second = site.submit("train", stubborn, run=runs[1].name)
    site.wait(lambda: "waiting for 1 slot of 'gpu'" in progress(site, second))
    site.kill_server()
    time.sleep(2 * TRY_EVERY_SECONDS)  # it asks for a slot meanwhile
    site.start_server()
    site.kill_worker()
    try:
        assert reconcile(site) == "", "it disturbs nothing that lives"
        (stubborn / "pretend").touch()
        (stubborn / "hang").unlink()
        site.wait(lambda: site.state(first) == "Completed")
        assert site.state(second) == "Running"
        site.wait(lambda: site.state(second) == "Completed")
        assert "step 4 of 4" in progress(site, second)
        assert "Completed" in (runs[1] / "flow.log").read_text()
        site.wait(lambda: not processes_of_run(first) + processes_of_run(second))
    finally:
        site.start_worker()
    with site.client as client:
        client.increment_concurrency_slots(["gpu"], 1, "concurrency")
        again = site.submit("train", stubborn, run=runs[0].name)
        site.wait(lambda: site.state(again) == "Completed")  # nothing is left to compute
        client.release_concurrency_slots(["gpu"], 1, occupancy_seconds=0.1)
    site.wait(lambda: not processes_of_run(again))


def progress(site: Site, flow_run: UUID) -> str:
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

    condition = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with site.client as client:
        found = client.read_artifacts(artifact_filter=condition)
    return next((str(one.description) for one in found if one.key == "training"), "")


def taken_slots(site: Site) -> int:
    with site.client as client:
        return int(client.read_global_concurrency_limit_by_name("gpu").active_slots)


def reconcile(site: Site) -> str:
    script = (
        "import flows\nfrom flows.local_platform.reconcile import reconcile\nprint(*reconcile())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=site.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
