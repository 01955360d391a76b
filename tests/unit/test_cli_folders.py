"""Folders that a command is to write into and cannot: refused with exit code 2 and their option."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.paths import make_folder, repository_root
from atelier.errors import ConfigError
from atelier.stages.run_file import open_run

RESOLVE = ["resolve", "--recipe", "tiny/base", "--params", os.devnull]


def refused(*arguments: str) -> str:
    """The message of a `stage` that is refused."""
    caught = CliRunner().invoke(application, ["stage", *arguments]).exception
    assert isinstance(caught, ConfigError), caught
    assert caught.exit_code == 2
    return str(caught)


@pytest.fixture
def impossible(tmp_path: Path) -> list[Path]:
    (tmp_path / "file").write_text("")
    return [Path("/proc/foo"), Path("/dev/null/x"), tmp_path / "file", tmp_path / "file" / "x"]


def test_an_impossible_run_folder_is_named(impossible: list[Path]) -> None:
    for folder in impossible:
        assert f"--run {folder}: cannot be a folder: " in refused(*RESOLVE, "--run", str(folder))
        assert f"--run {folder}: no such folder" in refused("prepare", "--run", str(folder))


def test_a_stage_makes_no_run_folder(tmp_path: Path) -> None:
    assert "atelier stage resolve" in refused("train", "--run", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["stage", "prepare", "--run", ""],
        ["compare", "a", "b", "--out", ""],
        ["rewards", "serve", "--folder", ""],
        ["plan", "--params", ""],
    ],
)
def test_an_empty_path_is_refused(arguments: list[str]) -> None:
    """An unset variable of a shell makes one; it would be the current directory."""
    outcome = CliRunner().invoke(application, arguments)
    assert outcome.exit_code == 2
    assert "is empty" in outcome.output


@pytest.mark.parametrize("folder", [".", str(repository_root())])
def test_the_repository_is_no_run(folder: str) -> None:
    """The prepare stage would move its data/ aside."""
    assert "the repository itself" in refused("prepare", "--run", folder)
    assert "the repository itself" in refused(*RESOLVE, "--run", folder)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ConfigError, match=f"--out {tmp_path}: cannot be written"):
        make_folder(tmp_path, "--out")


def test_a_name_that_no_file_system_takes() -> None:
    with pytest.raises(ConfigError, match=r"--out .*cannot be a folder"):
        make_folder(Path("a\0b"), "--out")


def test_a_place_of_runs_that_cannot_be_one(monkeypatch) -> None:
    monkeypatch.setenv("ATELIER_RUNS", "/dev/null/x")
    with pytest.raises(ConfigError, match="ATELIER_RUNS /dev/null/x: cannot be a folder"):
        open_run("tiny/base", [], None, None, "id")
