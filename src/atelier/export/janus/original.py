"""A Janus in the layout of transformers, written in that of the original code.

Names and shapes change, values do not (policies/janus/original_layout.py; table in docs/export.md).
What is written is read back, translated, and compared bit for bit before it is put in place.

A model of the original code also has weights that nobody computes with, a configuration and a
tokenizer of its own. They are those of `like`, the original model; without it, weights alone are
written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from atelier.config.paths import make_folder
from atelier.errors import CheckpointError, ConfigError
from atelier.export.janus.base import BaseJanus
from atelier.export.language.base import CONFIG, EMBEDDING, HEAD
from atelier.export.language.own_files import copy_own_files
from atelier.export.manifest import MANIFEST, check_manifest
from atelier.export.publish import aside, publish, recover
from atelier.model_files import read_weights
from atelier.policies.janus.original_layout import UNUSED, from_original, is_original, to_original

SHARD = "5GB"


@dataclass(frozen=True)
class Converted:
    """What was written: tensors of the original layout, of them those taken over from `like`."""

    directory: Path
    tensors: int
    taken_over: int

    def describe(self) -> str:
        return (
            f"{self.directory}: {self.tensors} tensors in the original layout, read back and equal "
            "to their source bit for bit"
            + (f"; {self.taken_over} of them taken over" if self.taken_over else "")
        )


def write_original(source: Path, target: Path, like: Path | None = None) -> Converted:
    """Write the weights of a model directory to `target` in the original layout.

    Args:
        source: a merged export, a run that has one, or another directory that transformers loads.
        target: a new directory.
        like: a model directory in the original layout and of the same sizes, whose other files and
            unused weights make `target` a whole model.

    Raises:
        ConfigError: `source` is no Janus, `like` none in the original layout, `target` is
            there, or cannot be made.
        CheckpointError: an altered export, or weights that do not fit each other.
    """
    if target.exists():
        raise ConfigError(f"{target}: is there already; name a new directory")
    source = _model_directory(source)
    here = _weights(source)
    theirs = _original_weights(like) if like else {}
    there = _translated(source, here, theirs)
    if like is not None:
        _require_same_shapes(like, there, theirs)
    make_folder(target.parent, "OUT")
    recover(target)
    folder = aside(target)
    try:
        pattern = "model{suffix}.safetensors"
        save_torch_state_dict(there, folder, filename_pattern=pattern, max_shard_size=SHARD)
        if like is not None:
            copy_own_files(like, folder)
        _require_round_trip(folder, here)
        publish(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    taken_over = sum(1 for name in there if UNUSED.fullmatch(name))
    return Converted(target, len(there), taken_over)


def _model_directory(source: Path) -> Path:
    for folder in (source, source / "merged", source / "export" / "merged"):
        if (folder / CONFIG).is_file():
            return folder
    raise ConfigError(
        f"{source}: neither a model directory nor a run with a merged export (export/merged); an "
        "adapter holds no model"
    )


def _weights(source: Path) -> dict[str, Tensor]:
    """Weights by their names in transformers; the text head under its own name even where it shares
    the embedding, for in the original layout it does not."""
    if (source / MANIFEST).exists():
        check_manifest(source)
    base = BaseJanus.local(str(source.resolve()))
    assert base is not None  # it has a config.json
    found = _read(base)
    if HEAD not in found and EMBEDDING in found:
        found[HEAD] = found[EMBEDDING].clone()
    return found


def _read(base: BaseJanus) -> dict[str, Tensor]:
    try:
        return {name: value for file in base.weight_files() for name, value in base.tensors(file)}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{base.directory}: its weights cannot be read: {error}") from error


def _translated(
    source: Path, here: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    try:
        return {name: value.contiguous() for name, value in to_original(here, theirs).items()}
    except KeyError as error:
        raise CheckpointError(f"{source}: {error.args[0]}") from error


def _original_weights(like: Path) -> dict[str, Tensor]:
    """All weights of a directory in the original layout, as safetensors or as files of torch.save.

    Raises:
        ConfigError: there are none, they are in another layout, or they are all there is.
    """
    files = sorted(like.glob("*.safetensors"))
    pickles = [] if files else sorted((*like.glob("*.bin"), *like.glob("*.pth")))
    found: dict[str, Tensor] = {}
    try:
        for file in files:
            found |= load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{like}: its weights cannot be read: {error}") from error
    for file in pickles:
        found |= read_weights(file)
    if not is_original(found):
        raise ConfigError(
            f"{like}: holds no weights in the original layout of Janus; name a directory such as "
            "that of deepseek-ai/Janus-Pro-1B"
        )
    if not (like / CONFIG).is_file():
        raise ConfigError(
            f"{like}: has no {CONFIG} to take over; name the original model's whole directory, or "
            "leave --like out for weights alone"
        )
    return found


def _require_same_shapes(
    like: Path, there: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> None:
    """Raise CheckpointError unless the original model has the same weights in the same shapes."""
    if only := sorted(there.keys() ^ theirs.keys()):
        raise CheckpointError(
            f"{like}: {len(only)} weights are only there or only in the export, such as {only[0]}: "
            "it is another model's"
        )
    for name, value in there.items():
        if value.shape != theirs[name].shape:
            raise CheckpointError(
                f"{like}: {name} has shape {list(theirs[name].shape)} there, in the export "
                f"{list(value.shape)}: it is another model's"
            )


def _require_round_trip(folder: Path, here: Mapping[str, Tensor]) -> None:
    """Read what was written, translate it back, and compare."""
    again = from_original(dict(_stored(folder)))
    different = [name for name in here if name not in again or not _equal(again[name], here[name])]
    if different or again.keys() != here.keys():
        raise CheckpointError(
            f"{folder}: {len(different)} of {len(here)} weights are others when they are read "
            f"back{f', such as {different[0]}' if different else ''}"
        )


def _equal(left: Tensor, right: Tensor) -> bool:
    """Bit for bit, also where something is not a number."""
    same_kind = left.dtype == right.dtype and left.shape == right.shape
    return same_kind and torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _stored(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (not a mapping)
                yield name, opened.get_tensor(name)
