"""The benchmark of conversions refuses what it cannot convert before it evaluates anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier.config.resolve import resolve, write_stage_configs
from atelier.tracking.run_directory import RunDirectory
from benchmarks import conversion


def begun(root: Path, recipe: str) -> RunDirectory:
    run = RunDirectory(root)
    write_stage_configs(resolve(recipe), run)
    return run


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "atelier", lambda *words: pytest.fail(" ".join(words)))


def test_what_is_no_run_is_refused(tmp_path: Path, capsys) -> None:
    assert conversion.main([str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_run_of_another_family_is_refused(tmp_path: Path, capsys) -> None:
    begun(tmp_path, "tiny/flow-grpo-fast")
    assert conversion.main([str(tmp_path)]) == 2
    assert "a run of sd3; name one of deepgen" in capsys.readouterr().err


def test_a_run_that_was_not_saved_or_was_converted_is_refused(tmp_path: Path, capsys) -> None:
    run = begun(tmp_path, "deepgen/mr-grpo")
    assert conversion.main([str(tmp_path)]) == 2
    assert "train it with --finish" in capsys.readouterr().err
    (run.checkpoints / "step-000004").mkdir(parents=True)
    file = tmp_path / "sft.pth"
    file.touch()
    assert conversion.main([str(tmp_path)]) == 2
    assert "move it aside" in capsys.readouterr().err
    assert file.exists()
