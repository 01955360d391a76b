"""A real file system that is too small: stopped, resumable, nothing half written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from atelier.errors import Stopped

NAMESPACE = ("unshare", "--map-root-user", "--mount")
MOUNT = "mount -t tmpfs -o size=64k tmpfs"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/support/small_disk.py saw in a mount namespace of its own."""
    folder = tmp_path_factory.mktemp("disk")
    try:
        trial = subprocess.run(
            [*NAMESPACE, "sh", "-c", f"{MOUNT} {folder}"], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("no unshare here: a small file system cannot be mounted")
    if trial.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {trial.stderr.strip()}")
    result = folder.parent / "seen.json"
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-m", "tests.support.small_disk", str(folder), str(result)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return dict(json.loads(result.read_text()))


def test_training_stops_with_what_is_free_and_what_is_needed(seen: dict[str, Any]):
    message = seen["train"]["message"]
    assert message.startswith("run/train/checkpoints: the disk is full: ")
    assert "kB free, the checkpoint of step 2 needs 288.2 kB" in message
    assert "resume" in message
    record = seen["train"]["record"]
    assert (record["status"], record["error"]) == ("failed", f"Stopped: {message}")
    assert Stopped.exit_code == 75


def test_the_earlier_checkpoint_is_whole_and_nothing_half_is_left(seen: dict[str, Any]):
    assert seen["train"]["checkpoints"] == ["step-000001"]
    assert seen["train"]["leftovers"] == []


def test_with_room_again_it_ends_as_if_nothing_had_happened(seen: dict[str, Any]):
    assert [one["step"] for one in seen["train"]["metrics"]] == [1, 2]
    assert seen["train"]["metrics"] == seen["undisturbed"]


def test_an_export_that_does_not_fit_stops_and_leaves_nothing(seen: dict[str, Any]):
    assert seen["export"]["message"].startswith("run/export: the disk is full: ")
    assert seen["export"]["leftovers"] == []
    assert seen["export"]["files"] == ["stage.json"]


def test_lines_that_do_not_fit_leave_the_others_whole(seen: dict[str, Any]):
    assert seen["lines"]["whole"]
    assert seen["lines"]["lines"] > 0
