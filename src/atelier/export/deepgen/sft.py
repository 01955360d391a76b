"""A trained DeepGen in the form that fine-tuning starts from: one file of weights, published names.

`onto` is the checkpoint that was trained from: what it has beside the transformer and the
connector, the adapter of the language model first of all, is kept, and every weight keeps its
dtype. Without it the file holds the language model itself, its adapter merged. What is written is
read back and compared, and painted with in a clean process, before it is put in place. Of a
checkpoint that another trainer left, in one file or in several, there are no images to compare.

Source: DeepGen-RL: the published conversion loses shards and the adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from atelier.abandoned import beside, remove_abandoned
from atelier.config.paths import make_folder
from atelier.config.sections.policy_parts import holds_weights_alone
from atelier.errors import CheckpointError, ConfigError
from atelier.export.base import safetensors_of
from atelier.export.clean_process.digests import tensors_digest
from atelier.export.deepgen.base import BaseDeepGen
from atelier.export.manifest import MANIFEST, check_manifest
from atelier.export.record import ExportRecord, WrittenWeights, read_record
from atelier.export.reference import Differences
from atelier.export.reload import Exported, judge, reload_all
from atelier.model_files import no_weight, read_weights, require_numbers
from atelier.permissions import as_usual
from atelier.policies.deepgen.published import (
    TRANSFORMER,
    VLM,
    normalised,
    published_vlm_name,
    sort_weights,
)
from atelier.weight_index import WEIGHTS_INDEX

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
        differences: of its images from the trainer's, where these are known.
    """

    file: Path
    replaced: int
    vlm: int
    laid: Laid | None
    differences: Differences | None

    @property
    def kept(self) -> int:
        """Other weights of the checkpoint."""
        return 0 if self.laid is None else len(self.laid.state) - self.replaced

    def describe(self) -> str:
        if self.laid is None:
            rest = f"{self.vlm} of the language model, in full"
        else:
            rest = f"{self.kept} kept of the checkpoint, of whose transformer this moved "
            rest += f"{self.laid.moved:.2%}"
            if self.laid.left_out:
                rest += f", and {len(self.laid.left_out)} of its moving average left out"
        return (
            f"{self.file}: {self.replaced} weights of transformer and connector, {rest}; read back "
            f"and equal, {self._painted()}"
        )

    def _painted(self) -> str:
        if self.differences is None:
            return "not painted with: a checkpoint has no images of its trainer"
        images = self.differences.images
        return (
            f"images within {images.max * 255:.0f}/255 of the trainer's (mean "
            f"{images.mean * 255:.3f}/255)"
        )


def write_sft(
    source: Path,
    target: Path,
    onto: Path | None = None,
    device: str = "cpu",
    most_moved: float = MOST_MOVED,
) -> Converted:
    """Write the weights of a merged export, or of a checkpoint, as one file.

    Args:
        source: a merged export, or a run that has one; or what RL of DeepGen-RL saves: a directory
            with model.safetensors or its index, or such a file.
        target: a new file, *.pth.
        onto: the checkpoint of fine-tuning that was trained from.
        device: of the clean process, cpu or cuda.
        most_moved: see `laid_onto`.

    Raises:
        ConfigError: `source` is neither, `target` is there, or `onto` is missing, which a
            checkpoint needs, or cannot be read.
        CheckpointError: an altered export, a checkpoint of another model, or a file that does not
            give back what was written.
    """
    if target.exists() or target.suffix != ".pth":
        raise ConfigError(f"{target}: name a new file that ends in .pth")
    if (checkpoint := _checkpoint_of(source)) is not None:
        return _write_checkpoint(checkpoint, target, onto, most_moved)
    source = _merged(source)
    check_manifest(source)
    own = named_weights(source)
    if onto is None:
        laid, vlm = None, _language_model(source)
        state, written = {**own, **vlm}, own
        _require_real(str(source), state)
    else:
        laid, vlm = laid_onto(str(onto), own, read_weights(onto), most_moved), {}
        state = laid.state
        named = {normalised(stored): one for stored, one in state.items()}
        written = {name: named[name] for name in own}
    with _put_in_place(target, state) as aside:
        found = _painted(source, read_record(source), aside, written, device)
    return Converted(target, len(own), len(vlm), laid, found)


def _write_checkpoint(
    checkpoint: Path, target: Path, onto: Path | None, most_moved: float
) -> Converted:
    if onto is None:
        raise ConfigError(
            f"{checkpoint}: has no language model; name the checkpoint of fine-tuning that it was "
            "trained from (--onto)"
        )
    found = sort_weights(str(checkpoint), read_weights(checkpoint))
    if found.vlm:
        raise ConfigError(
            f"{checkpoint}: holds {len(found.vlm)} weights of the language model, too, as a "
            "checkpoint of fine-tuning does and one of RL does not"
        )
    own = {f"{TRANSFORMER}{name}": one for name, one in found.transformer.items()} | found.bridge
    laid = laid_onto(str(onto), own, read_weights(onto), most_moved)
    with _put_in_place(target, laid.state):
        pass
    return Converted(target, len(own), 0, laid, None)


def named_weights(merged: Path) -> dict[str, Tensor]:
    """Of the transformer and the connector of a model's directory, by published names."""
    base = BaseDeepGen.local(str(merged.resolve()))
    assert base is not None  # it is a directory
    return {
        base.loaded_name(name): value
        for file in base.weight_files()
        for name, value in base.tensors(file)
    }


@contextmanager
def _put_in_place(target: Path, state: Mapping[str, Tensor]) -> Iterator[Path]:
    """Write a file aside and read it back; it is renamed behind what else is proven of it."""
    make_folder(target.parent, "OUT")
    remove_abandoned(target)
    aside = beside(target)
    try:
        torch.save(dict(state), aside)
        _require_read_back(aside, state)
        yield aside
        as_usual([aside])
        aside.rename(target)
    finally:
        aside.unlink(missing_ok=True)


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
        ConfigError: a weight on either side is no real number, or is none any more in the dtype of
            the checkpoint.
    """
    sorted_weights = sort_weights(where, theirs)
    there = {f"{TRANSFORMER}{name}": one for name, one in sorted_weights.transformer.items()}
    there |= sorted_weights.bridge
    _require_the_same(where, own, there)
    _require_real(f"what is laid onto {where}", own)
    _require_real(where, there)
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
        stored: _cast(where, name, own[name], theirs[stored].dtype)
        if name in own
        else theirs[stored]
        for stored, name in names.items()
        if stored not in left_out
    }
    require_numbers(where, state)  # what is kept, too
    return Laid(state, left_out, moved)


def _cast(where: str, name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    """In a dtype that may be too narrow: then numbers become infinite, or the largest one."""
    largest = float(value.float().abs().max()) if value.numel() else 0.0
    end = torch.finfo(dtype).max
    if largest > end:
        kind = str(dtype).removeprefix("torch.")
        raise ConfigError(
            f"{where}: {name} is {kind} there, which ends at {end:g}, and what is laid onto it has "
            f"values of {largest:g}; save the checkpoint in a wider dtype"
        )
    return value.to(dtype)


def _require_real(where: str, weights: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless all are finite real numbers."""
    for name, value in weights.items():
        if not value.is_floating_point():
            raise no_weight(where, name, str(value.dtype).removeprefix("torch."))
    require_numbers(where, weights)


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


def _checkpoint_of(source: Path) -> Path | None:
    """The file of weights that is named, or the one of a checkpoint's directory; an index before a
    file, for a directory may have both. None where there is neither."""
    if holds_weights_alone(str(source)):
        return source
    for name in (f"model{WEIGHTS_INDEX}", "model.safetensors"):
        if (source / name).is_file():
            return source / name
    return None


def _merged(source: Path) -> Path:
    for folder in (source, source / "merged", source / "export" / "merged"):
        if (folder / MANIFEST).is_file() and (folder / "connector").is_dir():
            return folder
    raise ConfigError(
        f"{source}: neither a merged export of DeepGen, nor a run with one (export/merged), nor a "
        "checkpoint with model.safetensors or its index; add merged to export.formats and run its "
        "export stage"
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
