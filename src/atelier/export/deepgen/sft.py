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
AVERAGE = "ema."  # before names of a moving average
LISTED = 20  # weights that an error names


@dataclass(frozen=True)
class Laid:
    """A checkpoint with other weights of the transformer and the connector.

    Attributes:
        state: all that is written, by the checkpoint's names.
        left_out: names of its moving average, which is one of other weights.
        moved: how far the transformer is from the checkpoint's, relative to its length.
    """

    state: dict[str, Tensor]
    left_out: tuple[str, ...]
    moved: float


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        replaced: weights of the transformer and the connector.
        vlm: of the language model, where it is in the file in full.
        laid: where it was laid onto a checkpoint.
    """

    file: Path
    replaced: int
    vlm: int
    laid: Laid | None
    differences: Differences

    @property
    def kept(self) -> int:
        """Other weights of the checkpoint."""
        return 0 if self.laid is None else len(self.laid.state) - self.replaced

    def describe(self) -> str:
        images = self.differences.images
        if self.laid is None:
            rest = f"{self.vlm} of the language model, in full"
        else:
            rest = f"{self.kept} kept of the checkpoint, of whose transformer this moved "
            rest += f"{self.laid.moved:.2%}"
            if self.laid.left_out:
                rest += f", and {len(self.laid.left_out)} of its moving average left out"
        return (
            f"{self.file}: {self.replaced} weights of transformer and connector, {rest}; read back "
            f"and equal, images within {images.max * 255:.0f}/255 of the trainer's (mean "
            f"{images.mean * 255:.3f}/255)"
        )


def write_sft(
    source: Path,
    target: Path,
    onto: Path | None = None,
    device: str = "cpu",
    most_moved: float = MOST_MOVED,
) -> Converted:
    """Write a merged export's weights as one file.

    Args:
        source: a merged export, or a run that has one.
        target: a new file, *.pth.
        onto: the checkpoint of fine-tuning that was trained from.
        device: of the clean process, cpu or cuda.
        most_moved: see `laid_onto`.

    Raises:
        ConfigError: `source` is no merged DeepGen, `target` is there, or `onto` cannot be read.
        CheckpointError: an altered export, a checkpoint of another model, or a file that does not
            give back what was written.
    """
    if target.exists() or target.suffix != ".pth":
        raise ConfigError(f"{target}: name a new file that ends in .pth")
    source = _merged(source)
    check_manifest(source)
    own = named_weights(source)
    if onto is None:
        laid, vlm = None, _language_model(source)
        state, written = {**own, **vlm}, own
    else:
        laid, vlm = laid_onto(str(onto), own, read_weights(onto), most_moved), {}
        state = laid.state
        named = {normalised(stored): one for stored, one in state.items()}
        written = {name: named[name] for name in own}
    found = _put_in_place(source, target, state, written, device)
    return Converted(target, len(own), len(vlm), laid, found)


def named_weights(merged: Path) -> dict[str, Tensor]:
    """Of the transformer and the connector of a model's directory, by published names."""
    base = BaseDeepGen.local(str(merged.resolve()))
    assert base is not None  # it is a directory
    return {
        base.loaded_name(name): value
        for file in base.weight_files()
        for name, value in base.tensors(file)
    }


def _put_in_place(
    source: Path,
    target: Path,
    state: Mapping[str, Tensor],
    written: Mapping[str, Tensor],
    device: str,
) -> Differences:
    """Write a file aside, read it back, paint with it, and rename it; how far its images are from
    the trainer's."""
    make_folder(target.parent, "OUT")
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        torch.save(dict(state), aside)
        _require_read_back(aside, state)
        found = _painted(source, read_record(source), aside, written, device)
        as_usual([aside])
        aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)
    return found


# Laid onto a checkpoint ---------------------------------------------------------------------------


def laid_onto(
    where: str,
    own: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    most_moved: float = MOST_MOVED,
) -> Laid:
    """A checkpoint with other weights of the transformer and the connector, each in its dtype and
    by its name, and without its moving average.

    Args:
        where: the checkpoint, for errors.
        own: the other weights, by published names.
        theirs: all of the checkpoint's, by its names.
        most_moved: share of its transformer's length that the other may be away from it.

    Raises:
        CheckpointError: its weights of these are not the same ones, it has nothing of the language
            model, or its transformer is farther away.
    """
    sorted_weights = sort_weights(where, theirs)
    there = {f"{TRANSFORMER}{name}": one for name, one in sorted_weights.transformer.items()}
    there |= sorted_weights.bridge
    _require_the_same(where, own, there)
    if not sorted_weights.vlm:
        raise CheckpointError(
            f"{where}: holds nothing of the language model, so it is no checkpoint of fine-tuning; "
            "name the one that was trained from, or none, and the language model is written in full"
        )
    moved = _moved(own, there)
    if not moved < most_moved:
        raise CheckpointError(
            f"{where}: its transformer is {moved:.0%} of its length away from the export's: it is "
            "not the one that was trained from; if it is, raise --most-moved"
        )
    names = {stored: normalised(stored) for stored in theirs}
    left_out = tuple(stored for stored, name in names.items() if name.startswith(AVERAGE))
    state = {
        stored: own[name].to(theirs[stored].dtype) if name in own else theirs[stored]
        for stored, name in names.items()
        if stored not in left_out
    }
    return Laid(state, left_out, moved)


def _require_the_same(where: str, own: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError unless both have the same weights, in the same shapes."""
    odd = [f"{name} (only there)" for name in sorted(there.keys() - own.keys())]
    odd += [f"{name} (missing there)" for name in sorted(own.keys() - there.keys())]
    odd += [
        f"{name} (there {list(there[name].shape)}, in the export {list(value.shape)})"
        for name, value in own.items()
        if name in there and there[name].shape != value.shape
    ]
    if odd:
        more = f" and {len(odd) - LISTED} more" if len(odd) > LISTED else ""
        raise CheckpointError(
            f"{where}: is another model's: {len(odd)} weights of transformer and connector differ "
            f"in name or shape: {', '.join(odd[:LISTED])}{more}"
        )


def _moved(own: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> float:
    """Distance of the transformers, relative to the other one's length."""
    change = length = 0.0
    for name, value in there.items():
        if name.startswith(TRANSFORMER) and name != TABLE:
            before = value.float()
            change += float((own[name].float() - before).square().sum(dtype=torch.float64))
            length += float(before.square().sum(dtype=torch.float64))
    return (change / length) ** 0.5 if length else float("inf")


# Files --------------------------------------------------------------------------------------------


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
