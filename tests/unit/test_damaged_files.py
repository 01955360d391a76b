"""Files of a run directory that were damaged: an error that names the file, nothing made up."""

import json
from pathlib import Path

import pytest

from atelier.config.facts.files import read_json
from atelier.errors import CheckpointError, ConfigError, DataError
from atelier.export.janus.generation_config import write_generation_config
from atelier.export.manifest import MANIFEST, check_manifest
from atelier.report.comparison import read_comparison
from atelier.stages.find_run import find_run
from atelier.stages.frame import read_record
from atelier.stages.run_file import read_run
from atelier.tracking.events import JsonLines, read_json_lines
from atelier.tracking.mlflow_mirror.memory import Memory
from atelier.tracking.run_directory import RunDirectory, read_json_object
from atelier.training.checkpoint import verify_manifest

JUNK = ["{", "[]", "null", "5", "{}"]


DONE = {"identity": {}, "status": "done", "outputs": {}, "summary": {}}


@pytest.mark.parametrize(
    "text",
    [
        *JUNK,
        "",
        json.dumps(DONE)[:30],
        *(json.dumps(DONE | {key: None}) for key in ("identity", "outputs", "summary")),
        json.dumps(DONE | {"status": ["done"]}),
    ],
)
def test_stage_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "stage.json").write_text(text)
    with pytest.raises(DataError, match=r"stage\.json: .*; put it back, or remove it"):
        read_record(tmp_path)


@pytest.mark.parametrize("text", [*JUNK, '{"digests": {}, "recipe": 5, "overrides": []}'])
def test_run_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(DataError, match=r"run\.json"):
        read_run(RunDirectory(tmp_path))


@pytest.mark.parametrize("name", ["", "x" * 400, "a\0b"])
def test_run_names_that_can_be_none(name: str) -> None:
    with pytest.raises(Exception, match="no run "):
        find_run(name)


@pytest.mark.parametrize("text", ["{", "[1]", '[{"metric": "x"}]', "null"])
def test_comparison(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.evaluate.mkdir()
    (run.evaluate / "comparison.json").write_text(text)
    with pytest.raises(DataError, match=r"comparison\.json: not a comparison"):
        read_comparison(run)


@pytest.mark.parametrize("text", ["{", "[1]", "null"])
def test_checkpoint_manifest(tmp_path: Path, text: str) -> None:
    (tmp_path / "MANIFEST.json").write_text(text)
    with pytest.raises(CheckpointError, match="not a manifest"):
        verify_manifest(tmp_path)


def test_metrics_that_lost_lines_are_not_filled_up(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    lines.append({"step": 1})
    with pytest.raises(DataError, match=r"metrics\.jsonl: holds 11 bytes.*held 30"):
        lines.cut_back(30)
    lines.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step":1}\n'


@pytest.mark.parametrize("line", ["{", "[1]"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"step": 1}) + f"\n{line}\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl: the line at byte 12"):
        list(read_json_lines(path))


@pytest.mark.parametrize(
    "text", ["{", "[]", "null", "", '{"sent": {}}', '{"series": []}', '{"models": null}']
)
def test_what_mlflow_was_sent(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / "mlflow.json").write_text(text)
    with pytest.raises(DataError, match=r"mlflow\.json: .*; delete it, and the run is sent"):
        Memory(run, "digest", "sqlite:///there", {})
    (tmp_path / "mlflow.json").write_text("{}")
    assert not Memory(run, "digest", "sqlite:///there", {}).is_sent("parameters")


@pytest.mark.parametrize(
    ("text", "why"), [("{", "cannot be read as JSON"), ("[1]", "found a list")]
)
def test_objects_of_models_and_exports_fail_by_the_error_of_who_reads_them(
    tmp_path: Path, text: str, why: str
) -> None:
    path, manifest = tmp_path / "generation_config.json", tmp_path / MANIFEST
    path.write_text(text)
    manifest.write_text(text)
    for read, error in (
        (lambda: read_json(path), ConfigError),
        (lambda: write_generation_config(tmp_path), ConfigError),
        (lambda: read_json_object(path), DataError),
        (lambda: check_manifest(tmp_path), CheckpointError),
    ):
        with pytest.raises(error, match=rf"\.json: .*{why}"):
            read()
