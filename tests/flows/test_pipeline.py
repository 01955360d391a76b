"""The whole pipeline, as `atelier run` starts it."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.report.run_data import metric_records, periodic_evaluations, stage_records
from atelier.tracking.run_directory import STAGES, RunDirectory
from tests.flows.conftest import ROOT, Finished, Place, processes_of, wait_for_end
from tests.support.secrets import SECRETS

LONG = ("train.steps=400", "train.evaluate_every=0")


def test_every_stage_is_done_and_recorded(finished: Finished):
    records = stage_records(RunDirectory(finished.run))
    assert list(records) == list(STAGES)
    for name, record in records.items():
        assert record["status"] == "done", name
        assert record["outputs"], name
        assert record["seconds"] > 0


def test_a_killed_trainer_was_restarted_and_no_step_is_there_twice(finished: Finished):
    run = RunDirectory(finished.run)
    assert "the trainer crashed (exit code 137); restart 1 of 2" in finished.process.stdout
    assert '"event":"resumed"' in run.events.read_text()
    assert [record["step"] for record in metric_records(run)] == [1, 2, 3, 4, 5, 6]
    assert [one.step for one in periodic_evaluations(run)] == [0, 3, 6]
    with sqlite3.connect(finished.place.root / "mlflow/mlflow.db") as database:
        query = "select step from metrics where key = 'reward/mean' order by step"
        assert database.execute(query).fetchall() == [(1,), (2,), (3,), (4,), (5,), (6,)]


def test_the_console_shows_progress_and_ends_with_the_way_on(finished: Finished):
    output = finished.process.stdout
    name = finished.run.name
    assert f"run {name} (should it stop, `atelier run --resume {name}` goes on with it)" in output
    assert re.search(r"step +6/6 +reward", output)
    assert "held-out at step 6 (first 4 of 8 prompts): similarity" in output
    report, mlflow = output.strip().splitlines()[-2:]
    assert report.split()[-1] == str(finished.run / "report/index.html")
    assert f"server --backend-store-uri {finished.place.mlflow_uri}" in mlflow
    assert "before  after" in output
    assert "Traceback" not in output + finished.process.stderr


def test_run_file_says_what_the_run_is(finished: Finished):
    run = json.loads((finished.run / "run.json").read_text())
    assert run["flow_run_id"] == finished.run.name
    assert run["mlflow_run_id"]
    assert run["recipe"] == "tiny/base"
    assert run["run_name"] == "first"
    assert set(run["digests"]) == set(STAGES)


def test_prefect_knows_the_run_its_tasks_and_its_artifacts(finished: Finished):
    with sqlite3.connect(finished.place.root / "prefect/prefect.db") as database:
        flows = database.execute("select name, state_name from flow_run").fetchall()
        tasks = database.execute("select name, state_name from task_run").fetchall()
        artifacts = dict(database.execute("select key, data from artifact where key is not null"))
    assert flows == [("first", "Completed")]
    assert {name for name, _ in tasks} == {"resolve", *STAGES}
    assert {state for _, state in tasks} == {"Completed"}
    assert "95 % interval" in artifacts["before-after"]
    assert "report/index.html" in artifacts["report"]


def test_the_report_needs_nothing_but_itself(finished: Finished):
    page = (finished.run / "report/index.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert not re.findall(r"<script|@import|url\(", page)
    assert page.count("data:image/png;base64,") >= 2 * 8
    assert page.count("<svg") >= 3
    for row in json.loads((finished.run / "evaluate/comparison.json").read_text()):
        assert f"<td>{row['before']:.3f}</td><td>{row['after']:.3f}</td>" in page


def test_step_zero_of_the_curve_is_the_baseline_on_the_same_prompts(finished: Finished):
    run = RunDirectory(finished.run)
    zero = run.periodic_evaluation("ocr", 0)
    assert json.loads((zero / "summary.json").read_text())["images"] == 4
    for image in sorted((zero / "images").iterdir()):
        assert image.read_bytes() == (run.baseline / "images" / image.name).read_bytes()


def test_nothing_is_left_running(finished: Finished):
    assert wait_for_end(finished.place.root) == []


def test_a_change_reruns_what_reads_it_and_keeps_what_was_there(copied: Finished):
    """Resumed with another export: the stages before are skipped, the old export is kept."""
    before = stage_records(RunDirectory(copied.run))
    process = copied.place.run(copied.place.resume(copied.run, "export.weights=raw"))
    assert process.returncode == 0, process.stdout + process.stderr
    after = stage_records(RunDirectory(copied.run))
    for stage in ("prepare", "baseline", "train"):
        assert f"{stage}: done before, skipped" in process.stdout
        assert after[stage] == before[stage]
    assert (copied.run / "export.old-1/merged").is_dir()
    assert (copied.run / "export/merged").is_dir()
    assert before["export"]["outputs"] != after["export"]["outputs"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--set", "train.stepz=3"), 2, "train.steps"),
        (("--set", "rollout.group_size=1"), 3, "rollout.group_size"),
        (("--resume", "nothing"), 2, "no run 'nothing'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    place: Place, arguments: tuple[str, ...], code: int, words: str
):
    process = place.run(place.command(*arguments))
    assert process.returncode == code
    assert words in process.stderr
    assert "Traceback" not in process.stderr
    assert not place.runs.exists()
    assert not (place.root / "prefect/logs/temporary-server.log").exists()


def test_a_run_that_stops_itself_ends_with_75_and_is_not_retried(copied: Finished):
    process = copied.place.run(
        copied.place.resume(copied.run, "rewards.deadline=0.0001", "train.steps=7")
    )
    assert process.returncode == 75, process.stdout + process.stderr
    assert "error: rewards.jpeg_compressibility: no score" in process.stderr
    assert f"\nTo go on: atelier run --resume {copied.run.name}\n" in process.stderr
    assert "Traceback" not in process.stdout + process.stderr
    assert "restart" not in process.stdout
    assert (copied.run / "train.old-1/checkpoints").is_dir()
    with sqlite3.connect(copied.place.root / "prefect/prefect.db") as database:
        (flow,) = database.execute(
            "select state_name from flow_run order by created desc"
        ).fetchone()
        (task, count) = database.execute(
            "select state_name, run_count from task_run where name = 'train' order by created desc"
        ).fetchone()
    assert (flow, task, count) == ("Stopped", "Stopped", 1)


def test_ctrl_c_during_training_leaves_no_process_and_keeps_the_checkpoint(copied: Finished):
    process = subprocess.Popen(
        copied.place.resume(copied.run, *LONG),
        env=copied.place.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_step(copied.run, 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.strip().startswith("stopping; ")
    assert errors.endswith(f"interrupted. To go on: atelier run --resume {copied.run.name}\n")
    assert wait_for_end(copied.place.root) == []
    assert stage_records(RunDirectory(copied.run))["train"]["status"] == "failed"
    assert list((copied.run / "train/checkpoints").glob("step-*"))


def test_a_temporary_server_dies_with_a_killed_command(place: Place):
    script = (
        "import flows, time\n"
        "from flows.local_platform.server import prefect_server\n"
        "with prefect_server():\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=place.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    assert len(processes_of(place.root)) == 3
    process.kill()
    process.communicate()
    assert wait_for_end(place.root) == []


def wait_for_step(run: Path, step: int, seconds: float = 150.0) -> None:
    """Until a run that was resumed with other steps has trained a step anew."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        metrics = run / "train/metrics.jsonl"
        anew = (run / "train.old-1").exists() and metrics.exists()
        if anew and len(metrics.read_text().splitlines()) >= step:
            return
        time.sleep(0.2)
    raise AssertionError(f"no step {step} after {seconds} s")


# What is written down -----------------------------------------------------------------------------

# The pipeline of the fixture `finished` had tests/support/secrets.py in its environment.


def leaks(folder: Path, needles: dict[str, str]) -> list[str]:
    """File and needle, wherever a file below `folder` holds one, in its content or its name."""
    found = []
    for path in files(folder):
        content = path.read_bytes() + str(path.relative_to(folder)).encode()
        found += [
            f"{path.relative_to(folder)}: {name}"
            for name, needle in needles.items()
            if needle.encode() in content
        ]
    return found


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("place", ["runs", "mlflow", "prefect", "data"])
def test_no_secret_is_written_down(finished: Finished, place: str):
    folder = finished.place.root / place
    assert leaks(folder, SECRETS) == []
    assert place == "data" or any(files(folder)), "there is something to look through"


def test_no_secret_is_shown(finished: Finished):
    output = finished.process.stdout + finished.process.stderr
    assert not [name for name, secret in SECRETS.items() if secret in output]


@pytest.mark.parametrize("place", ["run", "mlflow", "prefect"])
def test_no_path_of_the_machine_is_written_down(finished: Finished, place: str):
    """But for what the user named (the fixture's model and store lie elsewhere), and for where
    MLflow's store itself is: MLflow knows no relative place, so its database names its folder."""
    needles = {"repository": f"{ROOT}", "home": f"{Path.home()}/", "run": f"{finished.run}"}
    folder = finished.run if place == "run" else finished.place.root / place
    assert leaks(folder, needles) == []
