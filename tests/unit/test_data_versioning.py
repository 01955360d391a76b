"""What is known of DVC's files without starting DVC. What needs DVC: tests/flows/test_dvc.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier.config.paths import repository_root, tracking_file
from atelier.data.versioning import can_track, md5_of, run_dvc, tracked_md5, without_secrets
from atelier.errors import DataError


def test_md5_of_a_folder_does_not_depend_on_the_order_of_its_files(tmp_path: Path):
    """The value is DVC 3.67's for a folder with these two files."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.txt").write_text("two\n")
    (tmp_path / "a.txt").write_text("one\n")
    assert md5_of(tmp_path / "a.txt") == "5bbf5a52328e7439ae6e719dfe712200"
    assert md5_of(tmp_path) == "20ad46588e5628537eb822c2583dd63d.dir"


@pytest.mark.parametrize("text", ["", "outs: []", "outs: [{path: a}]", "- 1", "outs: {"])
def test_a_file_that_is_no_dvc_file_is_named(tmp_path: Path, text: str):
    file = tmp_path / "data.dvc"
    file.write_text(text)
    with pytest.raises(DataError, match=r"data\.dvc: not a \.dvc file"):
        tracked_md5(file)


def test_a_file_is_tracked_by_itself_or_with_its_folder(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("atelier.config.paths.repository_root", lambda: tmp_path)
    (tmp_path / "pictures.dvc").touch()
    (tmp_path / "signs.txt.dvc").touch()
    assert tracking_file(tmp_path / "signs.txt") == tmp_path / "signs.txt.dvc"
    assert tracking_file(tmp_path / "pictures/a/b.png") == tmp_path / "pictures.dvc"
    assert tracking_file(tmp_path / "other.txt") is None
    assert tracking_file(Path("/elsewhere/signs.txt")) is None


def test_only_what_lies_in_the_project_can_be_tracked(tmp_path: Path):
    assert can_track(repository_root() / "data/prepared")
    assert not can_track(tmp_path)


def test_messages_hold_no_secrets(tmp_path: Path):
    environment = {"AWS_SECRET_ACCESS_KEY": "abcdefgh", "HOME": str(tmp_path), "A_KEY": "x"}
    text = f"cannot reach https://me:pass@host/x?signature=abcdefgh from {tmp_path}"
    shown = without_secrets(text, environment)
    assert shown == f"cannot reach https://***@host/x?signature=*** from {tmp_path}"


def test_a_failing_command_says_what_dvc_says(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "no-such-file")
    with pytest.raises(DataError) as caught:
        run_dvc(["add", "data/no-such-file"])
    message = str(caught.value)
    assert "`dvc add data/***` failed (exit code 1)" in message
    assert "does not exist" in message
