import json
import os
import subprocess
import sys

import pytest

from atelier.config.resolve import resolve, write_stage_configs
from atelier.errors import ConfigError
from atelier.stages import frame
from atelier.stages.run_file import read_run
from atelier.tracking.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch):
    """The mirror has tests of its own (tests/flows/test_mlflow_mirror.py)."""
    monkeypatch.setattr(frame.mirroring, "follow", lambda run: None)


@pytest.fixture
def run(tmp_path):
    run = RunDirectory(tmp_path / "run")
    write_stage_configs(resolve("tiny/base"), run)
    (tmp_path / "prompts.txt").write_text("one")
    return run


def open_stage(run):
    prompts = run.root.parent / "prompts.txt"
    return frame.open_stage("prepare", run, lambda run, config: [prompts], ["*.txt"])


def execute(run, calls, text="made"):
    stage = open_stage(run)

    def work():
        calls.append(text)
        (stage.folder / "made.txt").write_text(text)
        return {"text": text}

    return stage.execute(work)


def record(run):
    return json.loads((run.data / "stage.json").read_text())


def test_a_finished_stage_is_not_done_again(run):
    calls = []
    assert execute(run, calls) == execute(run, calls) == {"text": "made"}
    assert calls == ["made"]
    assert record(run)["status"] == "done"
    assert record(run)["outputs"].keys() == {"made.txt"}


@pytest.mark.parametrize("damage", ["altered", "removed"])
def test_a_damaged_output_is_made_again(run, damage):
    calls = []
    execute(run, calls)
    output = run.data / "made.txt"
    output.write_text("altered") if damage == "altered" else output.unlink()
    execute(run, calls)
    assert len(calls) == 2
    assert output.read_text() == "made"


def test_a_changed_input_moves_the_old_folder_aside(run, tmp_path):
    calls = []
    execute(run, calls, "first")
    (tmp_path / "prompts.txt").write_text("two")
    execute(run, calls, "second")
    (tmp_path / "prompts.txt").write_text("three")
    execute(run, calls, "third")
    assert (run.root / "data.old-1/made.txt").read_text() == "first"
    assert (run.root / "data.old-2/made.txt").read_text() == "second"
    assert (run.data / "made.txt").read_text() == "third"


def test_a_changed_configuration_moves_the_old_folder_aside_and_a_tracking_one_does_not(run):
    calls = []
    execute(run, calls)
    write_stage_configs(resolve("tiny/base", ["tracking.experiment=other"]), run)
    execute(run, calls)
    assert len(calls) == 1
    write_stage_configs(resolve("tiny/base", ["data.seed=5"]), run)
    execute(run, calls)
    assert len(calls) == 2
    assert (run.root / "data.old-1").is_dir()


def test_a_failed_stage_keeps_what_it_made_and_goes_on_there(run):
    stage = open_stage(run)

    def fail():
        (stage.folder / "partial.txt").write_text("partial")
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError):
        stage.execute(fail)
    assert record(run)["status"] == "failed"
    assert record(run)["error"] == "RuntimeError: no space"
    failed = record(run)
    execute(run, [])
    assert (run.data / "partial.txt").read_text() == "partial"
    assert record(run)["status"] == "done"
    assert record(run)["earlier"] == [{one: failed[one] for one in ("started", "seconds")}]


def test_an_attempt_that_was_killed_is_counted_without_its_seconds(run, tmp_path):
    execute(run, [])
    assert "earlier" not in record(run)
    killed = record(run) | {"status": "running"}
    del killed["seconds"]
    (run.data / "stage.json").write_text(json.dumps(killed))
    execute(run, [])
    assert [one["seconds"] for one in record(run)["earlier"]] == [None]
    (run.data / "made.txt").unlink()
    execute(run, [])
    assert [one["seconds"] is None for one in record(run)["earlier"]] == [True, False]
    (tmp_path / "prompts.txt").write_text("two")  # begun anew, and not gone on with
    execute(run, [])
    assert "earlier" not in record(run)


def test_a_missing_input_is_named_and_nothing_is_touched(run, tmp_path):
    execute(run, [])
    before = record(run)
    (tmp_path / "prompts.txt").unlink()
    with pytest.raises(ConfigError, match=r"prompts\.txt does not exist"):
        execute(run, [])
    assert record(run) == before


def test_only_one_process_writes_a_stage(run, tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys, time\nfrom pathlib import Path\n"
        "from atelier.stages.frame import _only_writer\n"
        "from atelier.tracking.run_directory import RunDirectory\n"
        "with _only_writer(RunDirectory(Path(sys.argv[1])), 'prepare'):\n"
        "    print('held', flush=True)\n    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", run.root], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"process {holder.pid} on \S+ is writing"):
            execute(run, [])
    finally:
        holder.kill()
        holder.communicate()
    execute(run, [])  # the kernel dropped the lock of the dead
    assert (run.root / "locks/prepare.pid").read_text().split()[0] == str(os.getpid())


def test_a_run_file_is_written_where_no_flow_did(run):
    execute(run, [])
    first = read_run(run)
    assert first["flow_run_id"] is None
    write_stage_configs(resolve("tiny/base", ["data.seed=5"]), run)
    execute(run, [])
    second = read_run(run)
    assert second["id"] == first["id"]
    assert second["digests"]["prepare"] != first["digests"]["prepare"]
