"""Run clean_process.py over exported directories and hold what it finds against their records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atelier.errors import CheckpointError
from atelier.export import clean_process
from atelier.export.record import VERIFICATION, ExportRecord
from atelier.export.reference import ImageDifference, image_difference, load_reference

GREY_LEVEL = 1 / 255
TIMEOUT = 3600.0  # seconds; loading and sampling a large model on a CPU is slow, hanging is not


@dataclass(frozen=True)
class Exported:
    """A directory to reload, its record, and where the base lies (adapter only)."""

    directory: Path
    record: ExportRecord
    base: Path | None = None

    @property
    def reference(self) -> Path:
        return self.directory / VERIFICATION / "reference.safetensors"


@dataclass(frozen=True)
class Outcome:
    """What the clean process reports of one directory; images uint8 [N, H, W, 3]."""

    error: str | None
    tensors: int = 0
    digest: str = ""
    scaling: tuple[float, ...] = ()
    images: np.ndarray | None = None


def reload_all(exported: Sequence[Exported], device: str) -> list[Outcome]:
    """Load every directory with plain diffusers in one fresh process, and generate its images.

    Raises:
        CheckpointError: the process itself failed.
    """
    with tempfile.TemporaryDirectory(prefix="atelier-verify-") as folder:
        jobs = [_job(one, device, Path(folder, f"{i}.npy")) for i, one in enumerate(exported)]
        jobs_file, outcomes_file = Path(folder, "jobs.json"), Path(folder, "outcomes.json")
        jobs_file.write_text(json.dumps(jobs), encoding="utf-8")
        # -I: neither PYTHONPATH nor the working directory can lend it a module.
        command = [sys.executable, "-I", clean_process.__file__, str(jobs_file), str(outcomes_file)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"},
        )
        if done.returncode != 0:
            raise CheckpointError(
                f"the process that reloads the export ended with code {done.returncode}: "
                f"{done.stderr[-2000:]}"
            )
        outcomes = json.loads(outcomes_file.read_text(encoding="utf-8"))
        return [_outcome(found, job) for found, job in zip(outcomes, jobs, strict=True)]


def judge(exported: Exported, outcome: Outcome) -> ImageDifference:
    """Compare what arrived in the clean process with the record and the reference.

    Returns:
        The difference of its images to the trainer's.

    Raises:
        CheckpointError: it did not load, or tensors, scale or images are not as recorded.
    """
    where, record, expected = exported.directory, exported.record, exported.record.weights
    if outcome.error is not None or outcome.images is None:
        raise CheckpointError(f"{where}: does not load and run with diffusers: {outcome.error}")
    if outcome.tensors < expected.tensors:
        raise CheckpointError(
            f"{where}: {outcome.tensors} of {expected.tensors} tensors matched the transformer: "
            "names or their prefix are wrong, and diffusers loads such files silently"
        )
    if list(outcome.scaling) != expected.scaling:
        raise CheckpointError(
            f"{where}: the adapter was loaded at scale {list(outcome.scaling)}, trained at "
            f"{expected.scaling}: alpha is missing from the metadata, or wrong"
        )
    if outcome.digest != expected.digest:
        raise CheckpointError(f"{where}: the loaded weights are not those that were exported")
    difference = image_difference(outcome.images, load_reference(exported.reference).images)
    _require_same_images(where, record, difference)
    return difference


def _require_same_images(where: Path, record: ExportRecord, found: ImageDifference) -> None:
    if record.dtype == "float32":
        if found.max > GREY_LEVEL * 1.001:
            raise CheckpointError(
                f"{where}: images differ from the trainer's by up to {found.max * 255:.0f}/255 "
                f"(mean {found.mean * 255:.2f}/255); at most 1/255 is rounding"
            )
    elif record.difference is not None and found.mean > 2 * record.difference.mean + GREY_LEVEL:
        # 16 bit: other hardware rounds otherwise, so the bound is what was measured at export.
        raise CheckpointError(
            f"{where}: images in {record.dtype} differ from the trainer's by "
            f"{found.mean * 255:.2f}/255 in the mean, at export by "
            f"{record.difference.mean * 255:.2f}/255"
        )


def _job(exported: Exported, device: str, images: Path) -> dict[str, Any]:
    return {
        "format": exported.record.format,
        "directory": str(exported.directory.resolve()),
        "base": str(exported.base) if exported.base else None,
        "reference": str(exported.reference.resolve()),
        "dtype": exported.record.dtype,
        "device": device,
        "images": str(images),
    }


def _outcome(found: dict[str, Any], job: dict[str, Any]) -> Outcome:
    if found["error"] is not None:
        return Outcome(error=found["error"])
    return Outcome(
        error=None,
        tensors=found["tensors"],
        digest=found["digest"],
        scaling=tuple(found["scaling"]),
        images=np.load(job["images"]),
    )
