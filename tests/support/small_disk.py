"""What a run does on a disk that is full: to be started in a mount namespace of its own.

    unshare --map-root-user --mount python -m tests.support.small_disk FOLDER RESULT

Mounts a small file system over FOLDER; it is gone with this process, so nothing has to be cleaned
up, and no rights are needed. Writes what it saw to the JSON file RESULT.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atelier.errors import Stopped
from atelier.stages import export, train
from atelier.stages.frame import read_record
from atelier.tracking.events import JsonLines
from atelier.tracking.run_directory import RunDirectory, write_json
from atelier.tracking.run_file import LOCK
from atelier.training import worker
from atelier.training.checkpoint import all_checkpoints, verify_manifest
from tests.support.runs import make_run, metrics, untrained_pipeline

PLENTY = 64 * 1024**2
QUICK = (
    "train.steps=2",
    "rollout.group_size=2",
    "train.updates_per_step=1",
    "tracking.mlflow_uri=http://127.0.0.1:9",  # nobody answers there
)


def mount(folder: Path, size: int, *options: str) -> None:
    settings = ",".join([f"size={size}", *options])
    command = ["mount", "-t", "tmpfs", "-o", settings, "tmpfs", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


def make_room(folder: Path) -> None:
    mount(folder, PLENTY, "remount")


def leave(folder: Path, free: int) -> None:
    """Make the disk so small that `free` bytes are left."""
    mount(folder, shutil.disk_usage(folder).used + free, "remount")


def train_until_full(run: RunDirectory, disk: Path) -> dict[str, Any]:
    """The stage, with room for one checkpoint and a half; then what it left, and going on."""
    weights = next(untrained_pipeline().glob("transformer/*.safetensors")).stat().st_size
    leave(disk, int(1.6 * 4 * weights))  # weights, average, two moments
    seen = {"message": stopped(lambda: train.run(run)), "record": read_record(run.train)}
    found = all_checkpoints(run.checkpoints)
    for one in found:
        verify_manifest(one)
    seen |= {"checkpoints": [one.name for one in found], "leftovers": hidden(run)}
    make_room(disk)
    worker.train(run.config("train"), run)
    return {**seen, "metrics": metrics(run)}


def export_until_full(run: RunDirectory, disk: Path) -> dict[str, Any]:
    """The stage with room for its record and hardly more."""
    write_json(run.evaluate / "comparison.json", [])
    leave(disk, 48 * 1024)
    seen = {"message": stopped(lambda: export.run(run)), "leftovers": hidden(run)}
    return {**seen, "files": sorted(path.name for path in run.export.iterdir())}


def append_until_full(disk: Path) -> dict[str, Any]:
    """Lines that do not fit leave those before as they were."""
    leave(disk, 4096)
    lines, record = JsonLines(disk / "lines.jsonl"), {"text": "x" * 1000}
    with contextlib.suppress(OSError):
        while True:
            lines.append(record)
    text = (disk / "lines.jsonl").read_text()
    return {"whole": text.endswith("\n"), "lines": len(text.splitlines())}


def stopped(work: Callable[[], object]) -> str:
    try:
        work()
    except Stopped as stop:
        return str(stop)
    return "it did not stop"


def hidden(run: RunDirectory) -> list[str]:
    """Files written aside that nobody renamed or removed; the lock of run.json is none of them."""
    aside = (path for path in run.root.rglob(".*") if path.name != LOCK)
    return sorted(path.relative_to(run.root).as_posix() for path in aside)


def main() -> int:
    disk = Path(sys.argv[1]).resolve()
    place = Path(tempfile.mkdtemp())
    undisturbed = make_run(place / "run", QUICK)
    worker.train(undisturbed.config("train"), undisturbed)
    mount(disk, PLENTY)
    run = make_run(disk / "run", QUICK)
    seen = {
        "train": train_until_full(run, disk),
        "undisturbed": metrics(undisturbed),
        "export": export_until_full(run, disk),
        "lines": append_until_full(disk),
    }
    Path(sys.argv[2]).write_text(json.dumps(seen))
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
