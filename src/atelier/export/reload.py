"""Run clean_process/ over exported directories and hold what it finds against their records."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atelier.config.paths import repository_root
from atelier.errors import CheckpointError
from atelier.export import clean_process
from atelier.export.families import family_of
from atelier.export.record import VERIFICATION, ExportRecord
from atelier.export.reference import Differences
from atelier.export.tolerances import require_same
from atelier.processes.supervised import SupervisedProcess

TIMEOUT = 3600.0  # seconds; loading and sampling a large model on a CPU is slow, hanging is not


@dataclass(frozen=True)
class Exported:
    """A directory to reload, its record, and where the base lies, if it is loaded with one; and a
    file whose weights stand in place of the directory's."""

    directory: Path
    record: ExportRecord
    base: Path | None = None
    weights: Path | None = None

    @property
    def reference(self) -> Path:
        return self.directory / VERIFICATION / "reference.safetensors"


@dataclass(frozen=True)
class Outcome:
    """What the clean process reports of one directory; `made` is what the family's reference is
    compared with, `frozen` are digests of what was not trained."""

    error: str | None
    tensors: int = 0
    digest: str = ""
    scaling: tuple[float, ...] = ()
    made: Mapping[str, np.ndarray] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)


def reload_all(exported: Sequence[Exported], device: str) -> list[Outcome]:
    """Load every directory with its family's library in one fresh process, and compute with it, on
    as many threads as this process does.

    Raises:
        CheckpointError: the process itself failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="atelier-verify-") as folder:
        jobs = [_job(one, device, Path(folder, f"{i}.npz")) for i, one in enumerate(exported)]
        jobs_file, outcomes_file = Path(folder, "jobs.json"), Path(folder, "outcomes.json")
        jobs_file.write_text(json.dumps(jobs), encoding="utf-8")
        # -I: neither PYTHONPATH nor the working directory can lend it a module.
        program = str(Path(clean_process.__file__).parent)
        command = [sys.executable, "-I", program, str(jobs_file), str(outcomes_file)]
        environment = {**os.environ, **_threads(), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        log = Path(folder, "process.log")
        with SupervisedProcess(command, log, environment, Path.cwd()) as process:
            code = process.wait(TIMEOUT)
        if code is None:
            raise CheckpointError(
                f"the process that reloads the export took more than {TIMEOUT:g} s: export where "
                "there is a GPU, or lower export.verify_prompts"
            )
        if code != 0:
            words = log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise CheckpointError(
                f"the process that reloads the export ended with code {code}: {words}"
            )
        outcomes = json.loads(outcomes_file.read_text(encoding="utf-8"))
        return [_outcome(found, job) for found, job in zip(outcomes, jobs, strict=True)]


def _threads() -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(torch.get_num_threads()))


def judge(exported: Exported, outcome: Outcome) -> Differences:
    """Compare what arrived in the clean process with the record and the reference.

    Returns:
        How far what it made is from what the trainer made.

    Raises:
        CheckpointError: it did not load, or tensors, scale or what it made are not as recorded.
    """
    where, record, expected = exported.directory, exported.record, exported.record.weights
    family = family_of(record.family)
    library = family.loads(record.format)
    if outcome.error is not None:
        raise CheckpointError(f"{where}: does not load and run with {library}: {outcome.error}")
    if outcome.tensors < expected.tensors:
        raise CheckpointError(
            f"{where}: {outcome.tensors} of {expected.tensors} tensors matched the model: "
            f"names or their prefix are wrong, and {library} loads such files silently"
        )
    if list(outcome.scaling) != expected.scaling:
        raise CheckpointError(
            f"{where}: the adapter was loaded at scale {list(outcome.scaling)}, trained at "
            f"{expected.scaling}: alpha is missing from its settings, or wrong"
        )
    if outcome.digest != expected.digest:
        raise CheckpointError(f"{where}: the loaded weights are not those that were exported")
    for part, digest in (record.frozen or {}).items():
        if outcome.frozen.get(part) != digest:
            raise CheckpointError(
                f"{where}: the {part} that is loaded with it is not the one it was trained beside"
            )
    differences = family.reference.load(exported.reference).compare(outcome.made)
    require_same(where, record, differences)
    return differences


def _job(exported: Exported, device: str, made: Path) -> dict[str, Any]:
    return {
        "family": exported.record.family,
        "format": exported.record.format,
        "directory": str(exported.directory.resolve()),
        "base": str(exported.base) if exported.base else None,
        "reference": str(exported.reference.resolve()),
        "weights": str(exported.weights.resolve()) if exported.weights else None,
        "dtype": exported.record.dtype,
        "device": device,
        "root": str(repository_root()),
        "made": str(made),
    }


def _outcome(found: dict[str, Any], job: dict[str, Any]) -> Outcome:
    if found["error"] is not None:
        return Outcome(error=found["error"])
    return Outcome(
        error=None,
        tensors=found["tensors"],
        digest=found["digest"],
        scaling=tuple(found["scaling"]),
        made=dict(np.load(job["made"])),
        frozen=found["frozen"],
    )
