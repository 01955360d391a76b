"""Checkpoints that are complete or absent, and the same whatever engine or world size wrote them.

    checkpoints/step-000020/
        trainable.safetensors  ema.safetensors  optimizer.safetensors  rng.safetensors
        behaviour.safetensors  the slow copy of the weights that samples, where there is one
        in_flight-*.safetensors  images sampled ahead, where there are any
        state.json             step, update count, digest, lengths of the metrics and events files
        MANIFEST.json          sha256 of the others; written last

Written aside, forced to disk, renamed: a directory named step-* is whole, or its manifest says
what is not. Tensors are safetensors; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from atelier.disk import require_writable, stopped_when_full, stopped_when_refused
from atelier.errors import CheckpointError, ConfigError, Stopped
from atelier.permissions import as_usual
from atelier.tracking.run_directory import all_checkpoints
from atelier.training.checkpoint_checks import (
    read_object,
    read_state,
    read_tensors,
    require_all_of,
    require_moments,
)
from atelier.training.engines import MOMENTS, OptimizerState

MANIFEST = "MANIFEST.json"
ALWAYS = ("optimizer.safetensors", "rng.safetensors", "state.json", "trainable.safetensors")


@dataclass(frozen=True)
class LoopState:
    """Where the loop stands: `step` steps and `updates` optimizer updates are done."""

    step: int
    updates: int
    digest: str
    metrics_offset: int
    events_offset: int


@dataclass(frozen=True)
class Checkpoint:
    """Everything a trainer needs to go on as if it had not stopped. Tensors are on the CPU.

    Attributes:
        in_flight: folder of the files of images sampled ahead (in_flight.py): those of a saved
            checkpoint are moved into it.
        behaviour: the slow copy of the weights that samples, where there is one.
    """

    state: LoopState
    weights: Mapping[str, Tensor]
    ema: Mapping[str, Tensor] | None
    optimizer: OptimizerState
    rng: Mapping[str, Tensor]
    in_flight: Path | None = None
    behaviour: Mapping[str, Tensor] | None = None


def checkpoint_name(step: int) -> str:
    """Of the folder of a step's checkpoint."""
    return f"step-{step:06d}"


def make_ready(folder: Path) -> None:
    """Before a life's first step, by who holds the run's lock: checkpoints can be written into the
    folder, and what a killed life left half-written there, as large as one, is removed.

    Raises:
        Stopped: nothing can be written there.
    """
    require_writable(folder)
    for left in folder.glob(".step-*"):
        shutil.rmtree(left)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write checkpoint `step-NNNNNN` into `folder`.

    Raises Stopped when the disk is full or refuses it, or a weight is not finite; what was there
    before stays whole.
    """
    _require_finite(checkpoint)
    final = folder / checkpoint_name(checkpoint.state.step)
    aside = folder / f".{final.name}.{os.getpid()}"
    what = f"the checkpoint of step {checkpoint.state.step}"
    refused = stopped_when_refused(folder, what)
    with stopped_when_full(folder, what, _size(checkpoint)), refused:
        try:
            shutil.rmtree(aside, ignore_errors=True)  # of a killed life that had our number
            aside.mkdir(parents=True)
            _write(aside, checkpoint)
            if final.exists():
                shutil.rmtree(final)
            aside.rename(final)
            _sync(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return final


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove the oldest checkpoints beyond `keep`. To be called when the newest is proven."""
    for old in all_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)


def _require_finite(checkpoint: Checkpoint) -> None:
    odd = [name for name, value in checkpoint.weights.items() if not value.isfinite().all()]
    if odd:
        raise Stopped(
            f"step {checkpoint.state.step}: {len(odd)} of {len(checkpoint.weights)} trained "
            f"tensors are not finite ({odd[0]} is the first): training diverged. They are not "
            "saved, the last checkpoint is as it was; begin a new run with a lower "
            "train.learning_rate"
        )


def _size(checkpoint: Checkpoint) -> int:
    """Bytes of its tensors."""
    groups = [checkpoint.weights, checkpoint.ema or {}, checkpoint.behaviour or {}, checkpoint.rng]
    groups += checkpoint.optimizer.moments.values()
    return sum(one.numel() * one.element_size() for group in groups for one in group.values())


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    save_file(dict(checkpoint.weights), folder / "trainable.safetensors")
    for name, tensors in (("ema", checkpoint.ema), ("behaviour", checkpoint.behaviour)):
        if tensors is not None:
            save_file(dict(tensors), folder / f"{name}.safetensors")
    moments = {
        f"{kind}.{name}": value
        for name, kinds in checkpoint.optimizer.moments.items()
        for kind, value in kinds.items()
    }
    save_file(
        moments,
        folder / "optimizer.safetensors",
        metadata={"updates": str(checkpoint.optimizer.updates)},
    )
    save_file(dict(checkpoint.rng), folder / "rng.safetensors")
    if checkpoint.in_flight is not None:
        for path in checkpoint.in_flight.iterdir():
            path.rename(folder / path.name)
        checkpoint.in_flight.rmdir()
    state = {**asdict(checkpoint.state), "optimizer_updates": checkpoint.optimizer.updates}
    if checkpoint.optimizer.scaler:
        state["loss_scaler"] = dict(checkpoint.optimizer.scaler)
    (folder / "state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
    files = sorted(path for path in folder.iterdir())
    as_usual(files)
    manifest = {path.name: _sha256(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True))
    for path in [*files, folder / MANIFEST]:
        _sync(path)
    _sync(folder)


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read a checkpoint after checking its manifest.

    Raises:
        CheckpointError: a file is missing, altered, no checkpoint's, or of another model.
    """
    verify_manifest(folder)
    state = read_state(folder / "state.json")
    optimizer_updates, scaler = state.pop("optimizer_updates"), state.pop("loss_scaler")
    weights = read_tensors(folder / "trainable.safetensors")
    return Checkpoint(
        state=LoopState(**state),
        weights=weights,
        ema=_read_copy(folder / "ema.safetensors", weights),
        optimizer=OptimizerState(optimizer_updates, _read_moments(folder, weights), scaler),
        rng=read_tensors(folder / "rng.safetensors"),
        in_flight=folder,
        behaviour=_read_copy(folder / "behaviour.safetensors", weights),
    )


def _read_copy(path: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """A second set of the trained tensors, where the checkpoint has it."""
    if not path.exists():
        return None
    found = read_tensors(path)
    require_all_of(path, found, weights)
    return found


def _read_moments(folder: Path, weights: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    path = folder / "optimizer.safetensors"
    moments: dict[str, dict[str, Tensor]] = {}
    for name, value in read_tensors(path).items():
        kind, _, parameter = name.partition(".")
        moments.setdefault(parameter, {})[kind] = value
    require_moments(path, moments, MOMENTS, weights)
    return moments


def require_copies(folder: Path, checkpoint: Checkpoint, kept: Collection[str]) -> None:
    """Raise CheckpointError unless it holds exactly those of `ema` and `behaviour` that are kept.

    Without this, a copy that was lost would begin anew at the trained weights, and nobody know.
    """
    for name, tensors in (("ema", checkpoint.ema), ("behaviour", checkpoint.behaviour)):
        if (tensors is not None) != (name in kept):
            holds, wants = ("holds no", "keeps") if tensors is None else ("holds", "keeps no")
            raise CheckpointError(
                f"{folder}: {holds} {name}.safetensors, but this configuration {wants} such a "
                "copy; put the checkpoint back from a copy, or move its folder aside"
            )


def read_weights(folder: Path, kind: str) -> dict[str, Tensor]:
    """A checkpoint's tensors to evaluate or export: `ema` (averaged) or `raw` (last).

    Raises ConfigError when the run kept no average.
    """
    if kind == "raw":
        return read_tensors(folder / "trainable.safetensors")
    averaged = folder / "ema.safetensors"
    if not averaged.exists():
        raise ConfigError(
            f"export.weights: ema, but {folder} holds no moving average "
            "(train.ema.enabled: false); set export.weights=raw"
        )
    return read_tensors(averaged)


def verify_manifest(folder: Path) -> None:
    """Raise CheckpointError naming every file that is missing, altered or not listed.

    Not listed, of what every checkpoint has or what this one holds: nothing vouches for it.
    """
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise CheckpointError(f"{folder}: no {MANIFEST}; this is not a complete checkpoint")
    listed = read_object(manifest, "a manifest")
    held = {path.name for path in folder.glob("*.safetensors")}
    if unlisted := sorted({*ALWAYS, *held} - listed.keys()):
        raise CheckpointError(
            f"{manifest}: does not list {', '.join(unlisted)}; put the checkpoint back from a "
            "copy, or move its folder aside"
        )
    wrong = [
        name
        for name, digest in listed.items()
        if not (folder / name).is_file() or _sha256(folder / name) != digest
    ]
    if wrong:
        raise CheckpointError(f"{folder}: missing or altered: {', '.join(wrong)}")


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint, or None where there is none yet."""
    found = all_checkpoints(folder)
    return found[-1] if found else None


def check_reload(folder: Path, fresh: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load what was saved into a fresh module and compare it with what was meant, bit for bit.

    Raises CheckpointError when keys do not match (a renamed prefix loads as a no-op elsewhere)
    or a value differs.
    """
    saved = read_tensors(folder / "trainable.safetensors")
    result = fresh.load_state_dict(saved, strict=False, assign=True)
    matched = len(saved) - len(result.unexpected_keys)
    if result.unexpected_keys or matched != len(weights) or not matched:
        raise CheckpointError(
            f"{folder}: {matched} of {len(weights)} saved tensors match the model; "
            f"unknown: {result.unexpected_keys[:3]}"
        )
    loaded = dict(fresh.named_parameters())
    different = [name for name, value in weights.items() if not torch.equal(loaded[name], value)]
    if different:
        raise CheckpointError(f"{folder}: reloaded values differ: {different[:3]}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
