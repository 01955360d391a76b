import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.errors import CheckpointError, ConfigError
from atelier.processes.locks import hold
from atelier.report.page import render
from atelier.report.run_data import stage_records
from atelier.retention.applying import apply
from atelier.retention.removals import Choice, removals
from atelier.retention.survey import freed_bytes, survey
from atelier.stages.evaluate import last_checkpoint
from atelier.tracking.run_directory import read_json_object, write_json
from tests.support.fake_run import finish, open_fake_run, write_evaluation


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A folder of runs, where an hour is nothing."""
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def finished_run(root, name, created="2026-01-01T00:00:00+00:00"):
    """A finished run with three checkpoints of which the last was evaluated."""
    run = open_fake_run(root / name, "sqlite:///unused.db")
    finish(run)
    write_json(run.run_file, read_json_object(run.run_file) | {"created": created})
    for step in (1, 2, 3):
        folder = run.checkpoints / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "trainable.safetensors").write_bytes(os.urandom(100_000))
        (folder / "MANIFEST.json").write_text("{}")
    names = [f"checkpoints/step-{step:06d}/MANIFEST.json" for step in (1, 2, 3)]
    change_record(run, "train", outputs={name: "0" * 64 for name in names})
    used = {"inputs": {"train/checkpoints/step-000003/MANIFEST.json": "0" * 64}}
    change_record(run, "evaluate", identity=used)
    return run


def change_record(run, stage, **entries):
    path = run.root / stage / "stage.json"
    write_json(path, read_json_object(path) | entries)


def chosen(root, **choice):
    return removals(survey(root)[0], Choice(**choice))


def test_whole_runs_go_by_number_and_by_age(root):
    for name, day in (("new", "2026-03-01"), ("middle", "2026-02-01"), ("old", "2026-01-01")):
        run = finished_run(root, name, f"{day}T00:00:00+00:00")
        for stage in ("prepare", "baseline", "train", "evaluate", "export", "report"):
            folder = "data" if stage == "prepare" else stage
            change_record(run, folder, ended=f"{day}T01:00:00+00:00")
    names = lambda **choice: [one.run.run.root.name for one in chosen(root, **choice)]  # noqa: E731
    assert names(keep=1) == ["middle", "old"]
    assert names(keep=5) == []
    assert names(older_than=timedelta(days=0)) == ["new", "middle", "old"]
    assert names(keep=2, older_than=timedelta(days=0)) == ["old"]
    assert names(older_than=timedelta(days=365_000)) == []


def test_checkpoints_go_but_for_the_newest_and_what_was_evaluated(root):
    run = finished_run(root, "one")
    used = {"inputs": {"train/checkpoints/step-000002/MANIFEST.json": "0" * 64}}
    change_record(run, "export", identity=used)
    (found,) = chosen(root, checkpoints=True)
    assert [path.name for path in found.paths] == ["step-000001"]
    assert found.freed >= 100_000
    (line,) = apply([found])
    assert line.startswith("removed  one: checkpoints: 1 (")
    assert sorted(path.name for path in run.checkpoints.glob("step-*")) == [
        "step-000002",
        "step-000003",
    ]


def test_a_pruned_run_counts_as_trained_and_is_still_shown(root):
    run = finished_run(root, "one")
    assert len(list(apply(chosen(root, checkpoints=True, leftovers=True)))) == 2
    outputs = stage_records(run)["train"]["outputs"]
    assert list(outputs) == ["checkpoints/step-000003/MANIFEST.json"]
    assert not (run.periodic_evaluation("ocr", 0) / "images").exists()
    assert (run.periodic_evaluation("ocr", 2) / "images").exists()
    assert (run.periodic_evaluation("ocr", 0) / "scores.jsonl").exists()
    assert "rose from 0.515 to 0.715" in render(run)
    assert last_checkpoint(run).name == "step-000003"


def test_whoever_needs_a_pruned_checkpoint_is_told(root):
    from atelier.training.session import find_checkpoint

    run = finished_run(root, "one")
    list(apply(chosen(root, checkpoints=True)))
    for path in run.checkpoints.glob("step-*"):
        path.rename(run.root / path.name)
    with pytest.raises(CheckpointError, match="step-000001, step-000002 were pruned on 2"):
        last_checkpoint(run)
    with pytest.raises(CheckpointError, match="nothing to go on from: step-000001"):
        find_checkpoint(run.checkpoints, "digest", None, ())


def test_leftovers_are_what_nothing_reads(root):
    run = finished_run(root, "one")
    write_evaluation(run.root / "train.old-1" / "evaluation", 0.5)
    (run.checkpoints / ".step-000004.123").mkdir()
    found = chosen(root, leftovers=True)
    assert [(one.kind, len(one.paths)) for one in found] == [
        ("moved aside", 1),
        ("earlier images", 1),
        ("half written", 1),
    ]
    list(apply(found))
    assert not (run.root / "train.old-1").exists()
    assert (run.export / "merged/weights.bin").exists()
    assert chosen(root, leftovers=True) == []


def test_an_unfinished_run_keeps_its_checkpoints(root):
    run = finished_run(root, "one")
    change_record(run, "export", status="failed")
    long_ago = time.time() - 3600
    for path in run.root.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    assert chosen(root, checkpoints=True) == []
    assert [one.kind for one in chosen(root, keep=0)] == ["run"]


def test_a_run_that_changed_just_now_and_is_unfinished_is_left_alone(root):
    change_record(finished_run(root, "one"), "export", status="failed")
    assert chosen(root, keep=0) == []
    assert "unfinished, and changed 0 minutes ago" in (survey(root)[0][0].busy or "")


def test_a_run_that_is_being_written_is_left_alone(root):
    run = finished_run(root, "one")
    before = chosen(root, keep=0, checkpoints=True)
    writer = (
        "import sys, time; from pathlib import Path; from atelier.processes.locks import hold\n"
        "with hold(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    for lock in (run.root / "locks/export.pid", run.train / "lock", run.root / "locks/other.pid"):
        command = [sys.executable, "-c", writer, str(lock)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "held\n"
            try:
                assert chosen(root, keep=0, checkpoints=True, leftovers=True) == []
                (line,) = apply(before)  # chosen before somebody began
                assert line.startswith("kept     one: the whole run: process ")
            finally:
                process.kill()
    assert run.run_file.exists()
    assert [line.split()[0] for line in apply(before)] == ["removed"]
    assert not run.root.exists()


def test_links_are_not_followed_and_what_is_no_run_is_left_alone(root, tmp_path):
    elsewhere = finished_run(tmp_path / "elsewhere", "real")
    run = finished_run(root, "one")
    (root / "link").symlink_to(elsewhere.root)
    (root / "notes").mkdir()
    newer = finished_run(root, "newer")
    write_json(newer.run_file, read_json_object(newer.run_file) | {"format": 2})
    (run.root / "train").rename(tmp_path / "train")
    (run.root / "train").symlink_to(tmp_path / "train")
    (run.root / "export.old-1").symlink_to(elsewhere.export)
    runs, others = survey(root)
    assert [one.run.root.name for one in runs] == ["one"]
    assert [line.split(":")[0] for line in others] == ["link", "newer", "notes"]
    assert chosen(root, checkpoints=True, leftovers=True) == []
    list(apply(chosen(root, keep=0)))
    assert sorted(path.name for path in root.iterdir()) == ["link", "newer", "notes"]
    assert (elsewhere.checkpoints / "step-000001").exists()
    assert (tmp_path / "train/checkpoints/step-000001").exists()


def test_files_that_are_linked_elsewhere_free_nothing(root, tmp_path):
    run = finished_run(root, "one")
    before = freed_bytes(run.checkpoints)
    os.link(run.checkpoints / "step-000001/trainable.safetensors", tmp_path / "cache")
    assert before - freed_bytes(run.checkpoints) >= 100_000


def test_the_command_shows_first_and_removes_when_told(root):
    run = finished_run(root, "one")
    prune = lambda *options: CliRunner().invoke(application, ["prune", *options])  # noqa: E731
    shown = prune("--checkpoints")
    assert shown.exit_code == 0
    assert "checkpoints: 2" in shown.output
    assert "Nothing was removed; --apply does it." in shown.output
    assert len(list(run.checkpoints.glob("step-*"))) == 3
    done = prune("--checkpoints", "--apply")
    assert done.exit_code == 0
    assert "removed  one: checkpoints: 2 (" in done.output
    assert len(list(run.checkpoints.glob("step-*"))) == 1
    assert isinstance(prune("--apply").exception, ConfigError)
    overview = prune()
    assert "earlier images: 1" in overview.output
    (root / ".pruned.gone").mkdir()
    with hold(run.root / "locks" / "train.pid"):
        assert "being written by process" in prune("--keep", "0", "--apply").output
    assert run.run_file.exists()
    assert not (root / ".pruned.gone").exists()


def test_no_runs_are_no_error(root):
    result = CliRunner().invoke(application, ["prune", "--keep", "0", "--apply"])
    assert result.exit_code == 0
    assert "no runs" in result.output


@pytest.mark.parametrize("days", ["nan", "inf", "1e400", "99999999999999999", "-1"])
def test_days_that_are_none_are_refused(root, days):
    result = CliRunner().invoke(application, ["prune", "--older-than", days])
    assert result.exit_code == 2
    assert "--older-than" in result.output


def test_best_and_worst_images_stay_of_the_last_step_alone(root):
    run = finished_run(root, "one")
    for step in (10, 20, 30):
        run.step_samples(step).mkdir(parents=True)
        (run.step_samples(step) / "00000.png").write_bytes(os.urandom(10_000))
        write_json(run.step_samples(step) / "samples.json", {})
    (run.samples / ".step-000040.123").mkdir()
    paths = [path.name for one in chosen(root, leftovers=True) for path in one.paths]
    assert [name for name in paths if "step-0000" in name and name != "images"] == [
        "step-000010",
        "step-000020",
        ".step-000040.123",
    ]
