"""What is read of a checkpoint is what was written: tensors that open and fit, a state that is one.

The manifest says that files are as they were written. This is for a checkpoint whose manifest was
rewritten, and for one put together of two: training on with it would be silently another run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from atelier.errors import CheckpointError, DataError
from atelier.tracking.run_directory import read_json_object

_COUNTS = ("step", "updates", "optimizer_updates", "metrics_offset", "events_offset")
_MEND = "put the checkpoint back from a copy, or move its folder aside"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU.

    Raises:
        CheckpointError: it is missing, cut short or something else.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as tensors: {error}; {_MEND}") from error


def read_object(path: Path, what: str) -> dict[str, Any]:
    """A JSON object of a checkpoint; `what` it should be, for the message.

    Raises:
        CheckpointError: it is none.
    """
    try:
        return read_json_object(path)
    except DataError as error:
        raise CheckpointError(f"not {what}: {error}; {_MEND}") from error


def read_state(path: Path) -> dict[str, Any]:
    """state.json, with its keys and no others.

    Raises:
        CheckpointError: a key is missing, unknown, or not of its type.
    """
    state = {"loss_scaler": {}, **read_object(path, "the state of a checkpoint")}
    right = {
        "digest": isinstance(state.get("digest"), str),
        "loss_scaler": isinstance(state["loss_scaler"], dict),
        **{name: _is_count(state.get(name)) for name in _COUNTS},
    }
    wrong = sorted({name for name, good in right.items() if not good} | state.keys() - right.keys())
    if wrong:
        raise CheckpointError(
            f"{path}: {', '.join(wrong)}: missing, unknown or of a wrong type; {_MEND}"
        )
    return state


def require_all_of(
    path: Path, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> None:
    """Raise CheckpointError unless a file holds a copy of each trained tensor and nothing else."""
    odd = sorted(tensors.keys() ^ weights.keys())
    if odd:
        raise CheckpointError(
            f"{path}: holds {len(tensors)} tensors for {len(weights)} trained ones; only on one "
            f"side: {odd[:3]}; {_MEND}"
        )
    for name, value in tensors.items():
        _require_shape(path, name, value, weights[name])


def require_moments(
    path: Path,
    moments: Mapping[str, Mapping[str, Tensor]],
    kinds: tuple[str, ...],
    weights: Mapping[str, Tensor],
) -> None:
    """Raise CheckpointError unless every moment belongs to a trained tensor and has its kinds.

    A tensor that no gradient ever reached has none.
    """
    for name, found in moments.items():
        if name not in weights or found.keys() != set(kinds):
            raise CheckpointError(f"{path}: {name}: not the moments of a trained tensor; {_MEND}")
        for kind, value in found.items():
            _require_shape(path, f"{kind}.{name}", value, weights[name])


def _require_shape(path: Path, name: str, value: Tensor, trained: Tensor) -> None:
    if value.shape != trained.shape:
        raise CheckpointError(
            f"{path}: {name}: of shape {list(value.shape)}, and the trained tensor of "
            f"{list(trained.shape)}; {_MEND}"
        )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
