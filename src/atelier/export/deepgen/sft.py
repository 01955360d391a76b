"""A merged DeepGen in the form that fine-tuning starts from: one file of weights, published names.

`onto` is the checkpoint that was trained from: what it has beside the transformer and the
connector, the adapter of the language model first of all, is kept, and every weight keeps its
dtype. Without it the file holds the language model itself, its adapter merged. What is written is
read back and compared, and painted with in a clean process, before it is put in place.

Source: spec deepgen 7.3, 7.4: the published conversion loses shards and the adapter.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from atelier.config.paths import make_folder
from atelier.errors import CheckpointError, ConfigError
from atelier.export.base import safetensors_of
from atelier.export.clean_process.digests import tensors_digest
from atelier.export.deepgen.base import BaseDeepGen
from atelier.export.manifest import MANIFEST, check_manifest
from atelier.export.record import ExportRecord, WrittenWeights, read_record
from atelier.export.reference import Differences
from atelier.export.reload import Exported, judge, reload_all
from atelier.model_files import read_weights
from atelier.permissions import as_usual
from atelier.policies.deepgen.published import (
    TRANSFORMER,
    VLM,
    normalised,
    published_vlm_name,
    sort_weights,
)

TABLE = f"{TRANSFORMER}pos_embed.pos_embed"  # of positions; nobody trains it
MOST_MOVED = 0.5  # of the transformer's length; post-training moves it by some thousandths


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        replaced: weights of the transformer and the connector.
        kept: others of the checkpoint it was laid onto.
        vlm: of the language model, where it is in the file in full.
        moved: how far the transformer is from that checkpoint's, relative to its length.
    """

    file: Path
    replaced: int
    kept: int
    vlm: int
    moved: float | None
    differences: Differences

    def describe(self) -> str:
        images = self.differences.images
        if self.moved is None:
            rest = f"{self.vlm} of the language model, in full"
        else:
            rest = f"{self.kept} kept of the checkpoint, of whose transformer this moved "
            rest += f"{self.moved:.2%}"
        return (
            f"{self.file}: {self.replaced} weights of transformer and connector, {rest}; read back "
            f"and equal, images within {images.max * 255:.0f}/255 of the trainer's (mean "
            f"{images.mean * 255:.3f}/255)"
        )


def write_sft(
    source: Path, target: Path, onto: Path | None = None, device: str = "cpu"
) -> Converted:
    """Write a merged export's weights as one file.

    Args:
        source: a merged export, or a run that has one.
        target: a new file, *.pth.
        onto: the checkpoint of fine-tuning that was trained from.
        device: of the clean process, cpu or cuda.

    Raises:
        ConfigError: `source` is no merged DeepGen, `target` is there, or `onto` cannot be read.
        CheckpointError: an altered export, a checkpoint of another model, or a file that does not
            give back what was written.
    """
    if target.exists() or target.suffix != ".pth":
        raise ConfigError(f"{target}: name a new file that ends in .pth")
    source = _merged(source)
    check_manifest(source)
    record, base = read_record(source), BaseDeepGen.local(str(source.resolve()))
    assert base is not None  # it has a manifest
    own = {
        base.loaded_name(name): value
        for file in base.weight_files()
        for name, value in base.tensors(file)
    }
    vlm = {} if onto is not None else _language_model(source)
    theirs = {} if onto is None else read_weights(onto)
    state = {**own, **vlm} if onto is None else laid_onto(str(onto), own, theirs)
    written = {name: state[_stored(name, theirs)] for name in own}
    make_folder(target.parent, "OUT")
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        torch.save(state, aside)
        _require_read_back(aside, state)
        found = _painted(source, record, aside, written, device)
        as_usual([aside])
        aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)
    moved = None if onto is None else _moved(own, theirs)
    return Converted(target, len(own), len(state) - len(own) - len(vlm), len(vlm), moved, found)


def laid_onto(
    where: str, own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A checkpoint with other weights of the transformer and the connector, each in its dtype and
    by its name.

    Raises:
        CheckpointError: its weights of these are not the same ones, it has nothing of the language
            model, or its transformer is another model's.
    """
    sorted_weights = sort_weights(where, theirs)
    there = {f"{TRANSFORMER}{name}": one for name, one in sorted_weights.transformer.items()}
    there |= sorted_weights.bridge
    if odd := sorted(there.keys() ^ own.keys()):
        which = "only there" if odd[0] in there else "missing there"
        raise CheckpointError(
            f"{where}: {len(odd)} weights of transformer and connector are only in one of the two, "
            f"such as {odd[0]}, {which}: it is another model's"
        )
    for name, value in own.items():
        if there[name].shape != value.shape:
            raise CheckpointError(
                f"{where}: {name} has shape {list(there[name].shape)} there, in the export "
                f"{list(value.shape)}: it is another model's"
            )
    if not sorted_weights.vlm:
        raise CheckpointError(
            f"{where}: holds nothing of the language model, so it is no checkpoint of fine-tuning; "
            "name the one that was trained from, or none, and the language model is written in full"
        )
    moved = _moved(own, theirs)
    if not moved < MOST_MOVED:
        raise CheckpointError(
            f"{where}: its transformer is {moved:.0%} of its length away from the export's: it is "
            "not the one that was trained from"
        )
    own_names = {name: normalised(name) for name in theirs}
    return {
        stored: own[name].to(theirs[stored].dtype) if name in own else theirs[stored]
        for stored, name in own_names.items()
    }


def _moved(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Distance of the transformers, relative to the other one's length."""
    change = length = 0.0
    for stored, value in theirs.items():
        name = normalised(stored)
        if name.startswith(TRANSFORMER) and name in own and name != TABLE:
            before = value.double()
            change += float((own[name].double() - before).square().sum())
            length += float(before.square().sum())
    return (change / length) ** 0.5 if length else float("inf")


def _stored(name: str, theirs: Mapping[str, Tensor]) -> str:
    """What a checkpoint calls a weight."""
    if name in theirs or not theirs:
        return name
    return next(stored for stored in theirs if normalised(stored) == name)


def _merged(source: Path) -> Path:
    for folder in (source, source / "merged", source / "export" / "merged"):
        if (folder / MANIFEST).is_file() and (folder / "connector").is_dir():
            return folder
    raise ConfigError(
        f"{source}: neither a merged export of DeepGen nor a run with one (export/merged); add "
        "merged to export.formats and run its export stage"
    )


def _language_model(source: Path) -> dict[str, Tensor]:
    """All of it, by published names."""
    from safetensors.torch import load_file

    files = safetensors_of(source / "vlm", "model.safetensors", "language model")
    return {
        f"{VLM}{published_vlm_name(name)}": value
        for file in files
        for name, value in load_file(file).items()
    }


def _require_read_back(file: Path, state: Mapping[str, Tensor]) -> None:
    again = read_weights(file)
    different = [
        name for name in state if name not in again or not _equal(again[name], state[name])
    ]
    if different or again.keys() != state.keys():
        raise CheckpointError(
            f"{file}: {len(different)} of {len(state)} weights are others when they are read back"
        )


def _equal(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left, right)


def _painted(
    source: Path, record: ExportRecord, file: Path, written: Mapping[str, Tensor], device: str
) -> Differences:
    """How far the images of the file are from the trainer's.

    Raises:
        CheckpointError: it does not load and paint, or paints others.
    """
    dtypes = {str(one.dtype).removeprefix("torch.") for one in written.values()}
    dtype = "float32" if dtypes == {"float32"} else "bfloat16"
    weights = WrittenWeights(len(written), tensors_digest(written), [])
    own = replace(record, dtype=dtype, weights=weights, difference=None)
    exported = Exported(source, own, weights=file)
    (outcome,) = reload_all([exported], device)
    return judge(exported, outcome)
