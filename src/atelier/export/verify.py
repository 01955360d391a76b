"""`atelier verify PATH`: prove an exported directory, wherever it lies now (docs/export.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atelier.errors import CheckpointError, ConfigError
from atelier.export.base import BaseModel
from atelier.export.families import family_of
from atelier.export.manifest import MANIFEST, check_manifest
from atelier.export.record import VERIFICATION, ExportRecord, Format, read_record
from atelier.export.reference import Differences
from atelier.export.reload import Exported, judge, reload_all
from atelier.export.there import require_there

FORMATS: tuple[Format, ...] = ("adapter", "merged")


@dataclass(frozen=True)
class VerifiedDirectory:
    """What was proven of one directory; `differences` are to what the trainer made."""

    directory: Path
    record: ExportRecord
    files: int
    differences: Differences


@dataclass(frozen=True)
class VerifyReport:
    """One entry a directory; that it exists means that everything held."""

    directories: tuple[VerifiedDirectory, ...]

    def describe(self) -> str:
        """One line a directory, for a terminal."""
        return "\n".join(_line(one) for one in self.directories)


def _line(one: VerifiedDirectory) -> str:
    record, images, log_probs = one.record, one.differences.images, one.differences.log_probs
    moved = f"training moved them by {record.effect.mean * 255:.2f}/255"
    line = (
        f"{one.directory}: {record.format}, {record.dtype}: {one.files} files intact, "
        f"{record.weights.tensors} tensors loaded, images within {images.max * 255:.0f}/255 of "
        f"the trainer's (mean {images.mean * 255:.3f}/255; {moved})"
    )
    if log_probs is None or record.log_prob_effect is None:
        return line
    return (
        f"{line}, log-probabilities of tokens within {log_probs.max:.2g} (mean "
        f"{log_probs.mean:.2g}; training moved them by {record.log_prob_effect.mean:.2g})"
    )


def verify(path: Path | str, base: str | None = None, device: str = "auto") -> VerifyReport:
    """Check manifest and keys, reload in a clean process, compare what it makes.

    Args:
        path: an exported directory, or one that holds them (`export/` of a run, or the run).
        base: the model that an export is loaded together with, where it is (an adapter); default:
            the one recorded at export.
        device: auto (a GPU if there is one), cpu or cuda.

    Raises:
        CheckpointError: what does not hold, and where.
        ConfigError: `base` is no model of the export's family.
    """
    if base is not None and not base.strip():
        raise ConfigError("--base: name a model's directory or hub id, not an empty text")
    exported, files = [], []
    for directory in find_exports(Path(path)):
        files.append(check_manifest(directory))
        record = read_record(directory)
        if record.format == "adapter":
            family_of(record.family).check_adapter(directory, record)
        found = _find_base(directory, record, base).directory if record.needs_base else None
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
    require_there(path)
    if _is_export(path):
        return [path]
    for folder in (path, path / "export"):
        if found := [folder / name for name in FORMATS if _is_export(folder / name)]:
            return found
    raise CheckpointError(
        f"{path}: nothing exported here: neither {MANIFEST} nor "
        f"{'/ or '.join(FORMATS)}/ with one in it or in its export/"
    )


def resolve_device(device: str) -> str:
    """auto -> cuda if there is a GPU, else cpu."""
    import torch

    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _is_export(path: Path) -> bool:
    return (path / MANIFEST).is_file() or (path / VERIFICATION / "record.json").is_file()


def _find_base(directory: Path, record: ExportRecord, override: str | None) -> BaseModel:
    """The base of an export: the one named, else the one the run was configured with."""
    family = family_of(record.family)
    if override is None and record.base_is_local:
        base = family.base.local(record.base)  # a path that is gone must not be sought in the hub
    else:
        base = family.base.open(record.base if override is None else override)
    if base is None:
        raise CheckpointError(
            f"{directory}: the base it was trained on, {record.base}, is not found from here: "
            "name it with --base"
        )
    if base.weights_sha256() != record.base_sha256:
        raise CheckpointError(
            f"{directory}: the {base.trained_part} of {base.path} is not that of the {record.base} "
            "that was trained from: name the right one with --base"
        )
    return base
