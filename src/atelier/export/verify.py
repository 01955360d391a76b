"""`atelier verify PATH`: prove an exported directory, wherever it lies now (docs/export.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from atelier.config.paths import is_directory
from atelier.errors import CheckpointError, ConfigError
from atelier.export.base import BasePipeline, local_base, open_base
from atelier.export.manifest import MANIFEST, check_manifest
from atelier.export.record import VERIFICATION, ExportRecord, Format, read_record
from atelier.export.reference import ImageDifference
from atelier.export.reload import Exported, judge, reload_all

FORMATS: tuple[Format, ...] = ("adapter", "merged")
LORA_WEIGHTS = "pytorch_lora_weights.safetensors"


@dataclass(frozen=True)
class VerifiedDirectory:
    """What was proven of one directory; `difference` is of its images to the trainer's."""

    directory: Path
    record: ExportRecord
    files: int
    difference: ImageDifference


@dataclass(frozen=True)
class VerifyReport:
    """One entry a directory; that it exists means that everything held."""

    directories: tuple[VerifiedDirectory, ...]

    def describe(self) -> str:
        """One line a directory, for a terminal."""
        return "\n".join(
            f"{one.directory}: {one.record.format}, {one.record.dtype}: {one.files} files intact, "
            f"{one.record.weights.tensors} tensors loaded, images within "
            f"{one.difference.max * 255:.0f}/255 of the trainer's "
            f"(mean {one.difference.mean * 255:.3f}/255; training moved them by "
            f"{one.record.effect.mean * 255:.2f}/255)"
            for one in self.directories
        )


def verify(path: Path | str, base: str | None = None, device: str = "auto") -> VerifyReport:
    """Check manifest and keys, reload in a clean process, compare the images.

    Args:
        path: an exported directory, or one that holds them (`export/` of a run, or the run).
        base: the pipeline an adapter is loaded into; default: the one recorded at export.
        device: auto (a GPU if there is one), cpu or cuda.

    Raises:
        CheckpointError: what does not hold, and where.
        ConfigError: `base` is no pipeline.
    """
    if base is not None and not base.strip():
        raise ConfigError("--base: name a pipeline's directory or hub id, not an empty text")
    exported, files = [], []
    for directory in find_exports(Path(path)):
        files.append(check_manifest(directory))
        record = read_record(directory)
        found = None
        if record.format == "adapter":
            check_adapter_file(directory, record)
            found = _find_base(directory, record, base).directory
        exported.append(Exported(directory, record, found))
    outcomes = reload_all(exported, resolve_device(device))
    return VerifyReport(
        tuple(
            VerifiedDirectory(one.directory, one.record, count, judge(one, outcome))
            for one, outcome, count in zip(exported, outcomes, files, strict=True)
        )
    )


def find_exports(path: Path) -> list[Path]:
    """The exported directories at `path`: itself, or its formats, or those of its `export/`.

    Raises:
        CheckpointError: there is none.
    """
    if not is_directory(path):
        raise CheckpointError(
            f"{path}: no run and no such directory; name a run's, such as runs/<id>, or an "
            "exported one, such as runs/<id>/export or a copy of it"
        )
    if _is_export(path):
        return [path]
    for folder in (path, path / "export"):
        if found := [folder / name for name in FORMATS if _is_export(folder / name)]:
            return found
    raise CheckpointError(
        f"{path}: nothing exported here: neither {MANIFEST} nor "
        f"{'/ or '.join(FORMATS)}/ with one in it or in its export/"
    )


def check_adapter_file(directory: Path, record: ExportRecord) -> None:
    """Hold keys and metadata of the LoRA file against the record, without loading a pipeline.

    Raises:
        CheckpointError: file missing or unreadable, a key without the transformer's prefix, fewer
            tensors than recorded, no alpha or another one.
    """
    path, expected = directory / LORA_WEIGHTS, record.weights
    try:
        with safe_open(path, framework="pt") as file:
            keys, metadata = list(file.keys()), file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    matched = [key for key in keys if key.startswith("transformer.") and ".lora_" in key]
    if len(matched) != len(keys) or len(keys) != expected.tensors:
        raise CheckpointError(
            f"{path}: {len(matched)} of {expected.tensors} expected keys are LoRA parameters under "
            f"`transformer.`, the file holds {len(keys)}: diffusers would silently skip the others"
        )
    try:
        fields = json.loads(metadata.get("lora_adapter_metadata", "{}"))
        rank, alpha = fields.get("transformer.r"), fields.get("transformer.lora_alpha")
        scaling = [alpha / rank] if rank and alpha else []
    except (ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path}: metadata lora_adapter_metadata: {error}") from error
    if not scaling or scaling != expected.scaling:
        raise CheckpointError(
            f"{path}: metadata says alpha {alpha} and rank {rank}, trained at scale "
            f"{expected.scaling}: diffusers would silently load it at another scale"
        )


def resolve_device(device: str) -> str:
    """auto -> cuda if there is a GPU, else cpu."""
    import torch

    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _is_export(path: Path) -> bool:
    return (path / MANIFEST).is_file() or (path / VERIFICATION / "record.json").is_file()


def _find_base(directory: Path, record: ExportRecord, override: str | None) -> BasePipeline:
    """The base of an adapter: the one named, else the one the run was configured with."""
    if override is None and record.base_is_local:
        base = local_base(record.base)  # a path that is gone must not be looked up in the hub
    else:
        base = open_base(record.base if override is None else override)
    if base is None:
        raise CheckpointError(
            f"{directory}: the base it was trained on, {record.base}, is not found from here: "
            "name it with --base"
        )
    if base.transformer_sha256() != record.base_sha256:
        raise CheckpointError(
            f"{directory}: the transformer of {base.path} is not that of the {record.base} on "
            "which the adapter was trained: name the right one with --base"
        )
    return base
