"""Manifest and publication of an exported directory."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from atelier.errors import CheckpointError
from atelier.export.manifest import MANIFEST, check_manifest, write_manifest
from atelier.export.publish import aside, publish, recover
from atelier.export.verify import find_exports


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    folder = tmp_path / "export"
    (folder / "transformer").mkdir(parents=True)
    (folder / "transformer" / "weights").write_bytes(b"weights")
    (folder / "model_index.json").write_text("{}")
    write_manifest(folder)
    return folder


def test_an_intact_directory_passes_and_hidden_files_do_not_matter(directory: Path) -> None:
    (directory / ".cache").mkdir()
    (directory / ".cache" / "x").write_text("left by a hub client")
    assert check_manifest(directory) == 2


def test_every_problem_is_named(directory: Path) -> None:
    (directory / "transformer" / "weights").write_bytes(b"Weights")
    (directory / "model_index.json").unlink()
    (directory / "extra.bin").write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        check_manifest(directory)
    for problem in ("transformer/weights: altered", "model_index.json: missing", "extra.bin: not"):
        assert problem in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("content", [None, "", "not json", "[]", "{}", '{"a": '])
def test_a_manifest_that_is_none_is_an_error(directory: Path, content: str | None) -> None:
    if content is None:
        (directory / MANIFEST).unlink()
    else:
        (directory / MANIFEST).write_text(content)
    with pytest.raises(CheckpointError, match=MANIFEST):
        check_manifest(directory)


def test_publish_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "merged"
    for content in ("first", "second"):
        folder = aside(target)
        (folder / "file").write_text(content)
        publish(folder, target)
        assert (target / "file").read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_what_is_published_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    """safetensors writes files that only their owner may read."""
    for umask, usual in ((0o022, 0o644), (0o027, 0o640), (0o077, 0o600)):
        before = os.umask(umask)
        try:
            folder = aside(tmp_path / "merged")
            (folder / "transformer").mkdir()
            save_file({"a": np.zeros(2)}, folder / "transformer" / "model.safetensors")
            (folder / "tool").write_text("#!/bin/sh")
            (folder / "tool").chmod(0o700)
            (folder / "elsewhere").symlink_to(tmp_path)
            publish(folder, tmp_path / "merged")
        finally:
            os.umask(before)
        found = tmp_path / "merged"
        assert (found / "transformer" / "model.safetensors").stat().st_mode & 0o777 == usual
        assert (found / "tool").stat().st_mode & 0o777 == usual | 0o700
        assert sorted(path.name for path in found.iterdir()) == ["elsewhere", "tool", "transformer"]


def test_recover_brings_back_what_a_killed_publish_had_moved_away(tmp_path: Path) -> None:
    (tmp_path / ".merged.previous").mkdir()
    (tmp_path / ".merged.previous" / "file").write_text("earlier")
    recover(tmp_path / "merged")
    assert (tmp_path / "merged" / "file").read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_recover_removes_what_killed_processes_left_and_nothing_else(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    own = [f".merged.{pid}" for pid in (gone.pid, os.getpid())]
    others = [f".merged.{os.getppid()}", f".merge.{gone.pid}", ".merged.cache"]
    for name in (*own, *others):
        (tmp_path / name).mkdir()
    (tmp_path / own[0] / "file").touch()
    recover(tmp_path / "merged")
    assert {path.name for path in tmp_path.iterdir()} == set(others)


def test_exports_are_found_at_the_run_the_export_folder_and_the_format(tmp_path: Path) -> None:
    merged = tmp_path / "run" / "export" / "merged"
    merged.mkdir(parents=True)
    (merged / MANIFEST).write_text("{}")
    for path in (merged, merged.parent, merged.parent.parent):
        assert find_exports(path) == [merged]
    with pytest.raises(CheckpointError, match="nothing exported here"):
        find_exports(tmp_path)
    with pytest.raises(CheckpointError, match=r"gone: no run and no such directory; name a run's"):
        find_exports(tmp_path / "gone")
