"""The mirror against a real SQLite store, a real server, and no server at all."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

from atelier.config.resolve import resolve
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.judge.replies import Reply
from atelier.stages.run_file import read_run, write_data
from atelier.tracking import mlflow_mirror
from atelier.tracking.mlflow_mirror import series
from atelier.tracking.mlflow_mirror.memory import Memory
from atelier.tracking.mlflow_store import shown_uri, tracking_uri
from atelier.tracking.run_directory import RunDirectory, write_json
from atelier.tracking.run_file import note_in_run_file
from atelier.training.judge_traces import JudgeTraces
from tests.support.fake_run import finish, open_fake_run, write_record, write_steps
from tests.support.patience import at_once


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def client(store: str):
    from mlflow import MlflowClient

    return MlflowClient(store)


@pytest.fixture
def run(tmp_path: Path, store: str) -> RunDirectory:
    return open_fake_run(tmp_path / tmp_path.name, store)


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test is a new process as far as the mirror's memory goes."""
    monkeypatch.setattr(mlflow_mirror, "_left_alone_until", {})
    monkeypatch.setattr(series, "_asked", set())


def mirrored(client, run: RunDirectory):
    return client.get_run(read_run(run)["mlflow_run_id"])


def history(client, run: RunDirectory, key: str) -> list[tuple[int, float]]:
    found = client.get_metric_history(mirrored(client, run).info.run_id, key)
    return sorted((metric.step, metric.value) for metric in found)


def children(client, run: RunDirectory):
    parent = mirrored(client, run).info
    return client.search_runs(
        [parent.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.run_id}'"
    )


def test_a_finished_run_is_there_once_however_often_it_is_sent(client, run):
    finish(run)
    for _ in range(3):
        assert mlflow_mirror.sync(run)
        (run.root / "mlflow.json").unlink()  # the memory of what was sent is lost
        series._asked.clear()
    found = mirrored(client, run)
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm.beta"] == "0.0"
    assert found.data.params["rollout.window.size"] == "2"
    assert found.data.tags["atelier.recipe"] == "tiny/base"
    assert found.data.tags["prefect.flow_run_id"] == run.root.name
    assert history(client, run, "reward/mean") == [(1, 0.01), (2, 0.02), (3, 0.03)]
    assert "kl" not in found.data.metrics, "not a number is not sent"
    assert [step for step, _ in history(client, run, "evaluation/ocr/similarity")] == [0, 2]
    assert history(client, run, "final/similarity") == [(60, 0.7)]
    names = [file.path for file in client.list_artifacts(found.info.run_id, "images")]
    assert sorted(name.split("+")[2] for name in names if name.endswith(".png")) == ["0", "2"]
    assert {(child.info.run_name, child.info.status) for child in children(client, run)} == {
        (stage, "FINISHED")
        for stage in ("prepare", "baseline", "train", "evaluate", "export", "report")
    }
    assert all(child.data.metrics == {"seconds": 5.0} for child in children(client, run))
    inputs = {one.dataset.name: one.dataset.digest for one in found.inputs.dataset_inputs}
    assert inputs == {"prompts-train": "a" * 32, "prompts-heldout": "b" * 32}
    paths = {file.path for file in client.list_artifacts(found.info.run_id)}
    assert {"config", "report", "images", "ocr-step-000000.png", "ocr-step-000002.png"} <= paths


def test_a_verified_export_is_a_logged_model_and_a_version_that_knows_its_run(client, run):
    finish(run)
    for _ in range(2):
        assert mlflow_mirror.sync(run)
        (run.root / "mlflow.json").unlink()
    found = mirrored(client, run)
    (output,) = found.outputs.model_outputs
    model = client.get_logged_model(output.model_id)
    assert (model.status, model.source_run_id) == ("READY", found.info.run_id)
    files = Path(model.artifact_location.removeprefix("file://"))
    assert (files / "merged/weights.bin").read_bytes() == b"weights"
    versions = client.search_model_versions("name = 'atelier-sd3'")
    (version,) = [one for one in versions if one.run_id == found.info.run_id]
    assert version.tags["atelier.model"] == model.model_id
    assert version.tags["atelier.seed"] == "1"
    (link,) = json.loads(model.tags["mlflow.modelVersions"])
    assert link == {"name": "atelier-sd3", "version": int(version.version)}


def test_the_tables_of_a_suite_are_artifacts(client, run):
    finish(run)
    (run.baseline / "unigenbench.json").write_text("{}")
    (run.evaluate / "unigenbench.json").write_text('{"judge": {}}')
    (run.evaluate / "unigenbench_scores.csv").write_text("index\n")
    mlflow_mirror.sync(run)
    run_id = mirrored(client, run).info.run_id
    found = {
        stage: {file.path for file in client.list_artifacts(run_id, stage)}
        for stage in ("baseline", "evaluate")
    }
    assert found == {
        "baseline": {"baseline/unigenbench.json"},
        "evaluate": {"evaluate/unigenbench.json", "evaluate/unigenbench_scores.csv"},
    }


def test_the_best_and_worst_images_are_a_page(client, run):
    write_record(run, "train", "running")
    write_json(
        run.step_samples(10) / "samples.json",
        {"step": 10, "samples": [SAMPLE]},
    )
    assert mlflow_mirror.sync(run)
    run_id = mirrored(client, run).info.run_id
    names = {file.path for file in client.list_artifacts(run_id, "samples")}
    assert names == {"samples/step-000010.html", "samples/step-000010.json"}
    page = Path(client.download_artifacts(run_id, "samples/step-000010.html")).read_text()
    assert "ocr 0.250: text: A&amp;B" in page


SAMPLE = {"place": "best", "index": 0, "group": 0, "image": "00000.png", "prompt": "AB"} | {
    "total": 0.25,
    "scores": {"ocr": 0.25},
    "weights": {"ocr": 1.0},
    "details": {"ocr": {"text": "A&B"}},
    "missing": None,
}


def write_traces(run: RunDirectory, *answers: Answer) -> None:
    if not (run.train / "stage.json").exists():
        write_record(run, "train", "running")
    traces = JudgeTraces(run)
    for number, answer in enumerate(answers):
        image = Image.new("RGB", (32, 32), (number, 0, 0))
        traces.add("judges.strict", Question(f"Is it {number}?", YesNoForm(), [image]), answer)
    traces.close()


def traces_of(client, run: RunDirectory):
    info = mirrored(client, run).info
    found = client.search_traces(locations=[info.experiment_id], run_id=info.run_id)
    return sorted(found, key=lambda one: asked_in(one)[1]["text"])


def asked_in(trace):
    return trace.data.spans[0].inputs["messages"][0]["content"]


YES = Answer({"p_yes": 0.75}, (0.75,), measured=1, replies=(Reply("Yes <b>"),))
AWAY = Answer(missing="the judge is away", retryable=True)


def test_questions_to_judges_are_traces_of_the_run_each_once(client, run):
    write_traces(run, YES, AWAY)
    for _ in range(3):
        assert mlflow_mirror.sync(run)
        (run.root / "mlflow.json").unlink()
    write_traces(run, YES)
    for _ in range(2):
        assert mlflow_mirror.sync(run)
    first, again, missing = traces_of(client, run)
    assert [str(one.info.state) for one in (first, again, missing)] == ["OK", "OK", "ERROR"]
    (span,) = first.data.spans
    image, text = asked_in(first)
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "Is it 0?"}
    assert span.outputs["numbers"] == {"p_yes": 0.75}
    assert span.outputs["replies"][0]["text"] == "Yes <b>"
    assert missing.data.spans[0].outputs["missing"] == "the judge is away"
    assert first.info.tags["mlflow.traceName"] == "judges.strict"


def test_a_new_file_of_questions_is_sent_from_its_beginning(client, run):
    write_traces(run, YES, AWAY)
    assert mlflow_mirror.sync(run)
    run.judge_traces.unlink()
    write_traces(run, AWAY)
    assert mlflow_mirror.sync(run)
    assert len(traces_of(client, run)) == 3


def write_samples(run, seconds):
    lines = [
        {"time": f"2026-01-01T00:00:{at:02d}.000+00:00", "cpu_utilization_percentage": 1.5 * at}
        for at in seconds
    ]
    with run.system.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_system_metrics_are_the_train_stages_and_come_while_it_runs(client, run):
    write_record(run, "train", "running", started=10)
    write_samples(run, [2, 12])  # the first is of an earlier attempt
    assert mlflow_mirror.sync(run)
    (child,) = children(client, run)
    assert (child.info.run_name, child.info.status) == ("train", "RUNNING")
    write_samples(run, [14])
    write_record(run, "train", started=10)
    for _ in range(2):
        assert mlflow_mirror.sync(run)
        (run.root / "mlflow.json").unlink()
        series._asked.clear()
    (child,) = children(client, run)
    assert child.info.status == "FINISHED"
    name = "system/cpu_utilization_percentage"
    values = client.get_metric_history(child.info.run_id, name)
    assert [(one.step, one.value) for one in values] == [(1, 18.0), (2, 21.0)]
    assert not any(key.startswith("system/") for key in mirrored(client, run).data.metrics)


def test_dataset_inputs_carry_the_md5_of_dvc(client, run):
    finish(run)
    write_data(run, {"train.parquet": "1" * 32, "heldout.parquet": "2" * 32}, None)
    assert mlflow_mirror.sync(run)
    inputs = {
        one.dataset.name: one.dataset.digest for one in mirrored(client, run).inputs.dataset_inputs
    }
    assert inputs == {"prompts-train": "1" * 32, "prompts-heldout": "2" * 32}


def test_what_is_remembered_names_neither_machine_nor_password(run, tmp_path):
    open_fake_run(run.root, "http://me:secret@127.0.0.1:1/mlflow")
    memory = Memory(run, "digest", "http://me:secret@127.0.0.1:1/mlflow", {})
    memory.save()
    assert "secret" not in (run.root / "mlflow.json").read_text()
    assert shown_uri(tracking_uri(resolve("tiny/base"))) == "sqlite:///.atelier/mlflow.db"


def test_steps_repeated_by_a_resumed_trainer_are_not_sent_again(client, run):
    write_record(run, "train", "running")
    write_steps(run, range(1, 6))
    assert mlflow_mirror.sync(run)
    run.metrics.unlink()  # the resume cuts back to step 3, and trains 4 and 5 again
    write_steps(run, range(1, 4))
    assert mlflow_mirror.sync(run)
    write_steps(run, range(4, 8), seconds=2.0)
    series._asked.clear()
    assert mlflow_mirror.sync(run)
    assert [step for step, _ in history(client, run, "reward/mean")] == list(range(1, 8))
    assert [value for _, value in history(client, run, "time/step")] == [1.0] * 5 + [2.0] * 2


def test_many_steps_go_in_whole_batches(client, run, monkeypatch):
    monkeypatch.setattr(series, "METRICS_A_BATCH", 10)
    write_record(run, "train", "running")
    write_steps(run, range(1, 31))
    assert mlflow_mirror.sync(run)
    assert [step for step, _ in history(client, run, "reward/mean")] == list(range(1, 31))


def test_a_failed_stage_fails_the_run_until_it_is_resumed(client, run):
    write_record(run, "train", "failed", error="Stopped: no scores")
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.status == "FAILED"
    (child,) = children(client, run)
    assert (child.info.status, child.data.tags["atelier.error"]) == ("FAILED", "Stopped: no scores")
    write_record(run, "train", "running", started=20)
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.status == "RUNNING"


def test_between_stages_nothing_runs(client, run):
    """As after `atelier stage prepare` alone, however long until the next one."""
    write_record(run, "prepare", "running")
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.status == "RUNNING"
    write_record(run, "prepare")
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.status == "SCHEDULED"
    write_record(run, "baseline", "running", started=5)
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.status == "RUNNING"


def test_another_digest_opens_another_run_with_its_own_numbers_alone(client, run, store):
    finish(run)
    assert mlflow_mirror.sync(run)
    first = mirrored(client, run).info.run_id
    open_fake_run(run.root, store, "algorithm.beta=0.1")
    assert mlflow_mirror.sync(run)  # of another beta are what lies there from train on
    second = mirrored(client, run)
    assert second.info.run_id != first
    assert second.info.run_name == f"{read_run(run)['run_name']} (2)"
    assert second.info.status == "SCHEDULED"
    assert second.data.params["algorithm.beta"] == "0.1"
    assert set(second.data.metrics) == {"baseline/similarity"}
    assert not second.outputs.model_outputs
    paths = {file.path for file in client.list_artifacts(second.info.run_id)}
    assert not paths & {"images", "report", "ocr-step-000000.png"}
    shutil.rmtree(run.train)
    write_record(run, "train", "running", started=40)
    write_steps(run, range(1, 3))
    assert mlflow_mirror.sync(run)
    assert history(client, run, "reward/mean") == [(1, 0.01), (2, 0.02)]
    assert mirrored(client, run).info.status == "RUNNING"


def test_another_name_is_that_of_the_run_that_is_there(client, run):
    assert mlflow_mirror.sync(run)
    first = mirrored(client, run)
    assert first.info.run_name == read_run(run)["run_name"]
    note_in_run_file(run, run_name="mine")
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.run_id == first.info.run_id
    assert mirrored(client, run).info.run_name == "mine"


def test_a_stage_that_was_not_done_again_is_a_child_of_both_runs(client, run, store):
    """Else who opens the second one finds no baseline below it, and who compares no duration."""
    finish(run)
    assert mlflow_mirror.sync(run)
    first = children(client, run)
    open_fake_run(run.root, store, "algorithm.beta=0.1")
    for _ in range(2):
        assert mlflow_mirror.sync(run)
        (run.root / "mlflow.json").unlink()
    second = children(client, run)
    assert sorted(child.info.run_name for child in second) == ["baseline", "prepare"]
    assert len(first) == 6
    assert not {one.info.run_id for one in first} & {one.info.run_id for one in second}
    for child in second:
        (same,) = [one for one in first if one.info.run_name == child.info.run_name]
        assert child.info.start_time == same.info.start_time
        assert child.info.end_time == same.info.end_time
        assert child.data.metrics == {"seconds": 5.0}


def write_prepared(run, tables, started=0, status="done"):
    """The prepare stage's record, of a prompt file that `tables`, a digit, stands for."""
    write_record(run, "prepare", status, started=started)
    note_inputs(run.data / "stage.json", {"data/prompts/signs.txt": tables})
    if status == "done":
        write_data(run, {f"{name}.parquet": tables * 32 for name in ("train", "heldout")}, None)
        outputs = {"train.parquet": tables * 64, "heldout.parquet": tables * 64}
        note(run.data / "stage.json", outputs=outputs)


def note(path, **entries):
    write_json(path, json.loads(path.read_text()) | entries)


def note_inputs(path, inputs):
    note(path, identity={**json.loads(path.read_text())["identity"], "inputs": inputs})


def train_on(run, tables, rewards, started=0):
    """A run up to its training, on data that `tables`, a digit, stands for."""
    write_prepared(run, tables, started)
    write_record(run, "baseline", started=started + 5, summary={"similarity": rewards[0]})
    write_record(run, "train", started=started + 10)
    for stage in ("baseline", "train"):
        read = {f"data/{name}.parquet": tables * 64 for name in ("train", "heldout")}
        note_inputs(run.root / stage / "stage.json", {**read, "assets/tiny-sd3": "f" * 64})
    lines = [{"step": step, "reward/mean": one} for step, one in enumerate(rewards, start=1)]
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def data_of(client, run):
    return {one.dataset.digest for one in mirrored(client, run).inputs.dataset_inputs}


def test_a_training_on_other_data_is_another_run_though_the_configuration_is_equal(client, run):
    train_on(run, "a", [0.1, 0.2, 0.3])
    assert mlflow_mirror.sync(run)
    first = mirrored(client, run).info.run_id
    # The prompt file is changed, and the run resumed: while prepare is at it, and until a stage
    # moves it aside, what lies there is of the old one.
    write_prepared(run, "b", started=20, status="running")
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.run_id != first
    write_prepared(run, "b", started=20)
    assert mlflow_mirror.sync(run)
    assert not mirrored(client, run).data.metrics
    assert [child.info.run_name for child in children(client, run)] == ["prepare"]
    train_on(run, "b", [0.6, 0.7], started=20)
    for _ in range(2):
        assert mlflow_mirror.sync(run)
        (run.root / "mlflow.json").unlink()  # it is found again by what it is of
        series._asked.clear()
    second = mirrored(client, run).info.run_id
    assert history(client, run, "reward/mean") == [(1, 0.6), (2, 0.7)]
    assert history(client, run, "baseline/similarity") == [(0, 0.6)]
    assert data_of(client, run) == {"b" * 32}
    names = sorted(child.info.run_name for child in children(client, run))
    assert names == ["baseline", "prepare", "train"]
    # And the first one is as it was, also for who trains on its data again.
    train_on(run, "a", [0.1, 0.2, 0.3])
    assert mlflow_mirror.sync(run)
    assert mirrored(client, run).info.run_id == first != second
    assert history(client, run, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert data_of(client, run) == {"a" * 32}


def test_a_table_too_large_to_be_hashed_is_of_the_data_all_the_same(client, run):
    train_on(run, "a", [0.1])
    note_inputs(run.train / "stage.json", {"data/train.parquet": "300000000 bytes"})
    assert mlflow_mirror.sync(run)
    assert history(client, run, "reward/mean") == [(1, 0.1)]


def test_four_processes_may_open_a_new_store_at_once(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    runs = [open_fake_run(tmp_path / f"run-{index}", uri) for index in range(4)]
    command = [sys.executable, "-m", "atelier.tracking.mlflow_mirror"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen([*command, str(run.root)], env=environment, stderr=subprocess.PIPE)
        for run in runs
    ]
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    assert len({read_run(run)["mlflow_run_id"] for run in runs}) == 4


@pytest.fixture
def address() -> tuple[str, int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"http://127.0.0.1:{port}", port


def test_a_process_that_ends_while_it_creates_the_store_leaves_none(tmp_path):
    """As a stage of a second does: MLflow would refuse a half-made one for ever."""
    path = tmp_path / "mlflow.db"
    open_store = "from atelier.tracking.mlflow_mirror import store; store.client(%r)"
    command = [sys.executable, "-c", open_store % f"sqlite:///{path}"]
    first = subprocess.Popen(command)
    while not (tmp_path / ".mlflow.db.new-journal").exists():
        assert first.poll() is None, "the store was created before the test could interfere"
    first.kill()
    first.wait()
    assert not path.exists()
    subprocess.run(command, check=True)
    assert path.exists()


def test_an_outage_loses_nothing_and_stalls_nothing(tmp_path, address, caplog, monkeypatch):
    """Down for the whole run, then up."""
    uri, port = address
    run = open_fake_run(tmp_path / "run", uri)
    finish(run)
    write_samples(run, [11, 14])
    write_traces(run, YES, AWAY)
    logging.getLogger("atelier").propagate = True
    with caplog.at_level(logging.WARNING, "atelier"), at_once():  # retries are bounded
        assert not mlflow_mirror.sync(run)
    assert "sent later" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(mlflow_mirror, "send", lambda *_: pytest.fail("it is left alone"))
        assert not mlflow_mirror.sync(run)
    server = _start_server(tmp_path / "server", port)
    try:
        mlflow_mirror._left_alone_until.clear()  # the while is over
        for _ in range(2):  # everything; then nothing is left, also for who remembers nothing
            assert mlflow_mirror.sync(run)
            (run.root / "mlflow.json").unlink()
            series._asked.clear()
        from mlflow import MlflowClient

        client = MlflowClient(uri)
        _require_everything_once(client, run)
        assert len(client.search_model_versions("name = 'atelier-sd3'")) == 1
    finally:
        server.terminate()
        server.wait(timeout=20)
        shutil.rmtree(tmp_path / "server")


def _require_everything_once(client, run: RunDirectory) -> None:
    found = mirrored(client, run)
    assert found.info.status == "FINISHED"
    assert history(client, run, "reward/mean") == [(1, 0.01), (2, 0.02), (3, 0.03)]
    assert [step for step, _ in history(client, run, "evaluation/ocr/gold")] == [0, 2]
    stages = {child.info.run_name: child for child in children(client, run)}
    assert len(stages) == len(children(client, run)) == 6
    cpu = "system/cpu_utilization_percentage"
    assert len(client.get_metric_history(stages["train"].info.run_id, cpu)) == 2
    images = [file.path for file in client.list_artifacts(found.info.run_id, "images")]
    assert len([path for path in images if path.endswith(".png")]) == 2
    assert len(found.outputs.model_outputs) == 1
    assert len(found.inputs.dataset_inputs) == 2
    answered, missing = traces_of(client, run)
    assert answered.data.spans[0].outputs["numbers"] == {"p_yes": 0.75}
    assert missing.data.spans[0].outputs["missing"] == "the judge is away"


def _start_server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    folder.mkdir()
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port)),
            *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ],
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return server
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    server.kill()
    raise AssertionError("the MLflow server did not come up")
