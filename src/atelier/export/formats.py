"""Write the asked formats aside, prove them in one clean process, publish those that hold."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from atelier.config.sections.export import ExportConfig
from atelier.config.sections.policy import LoraConfig
from atelier.errors import AtelierError, CheckpointError, ConfigError
from atelier.export.adapter import export_adapter
from atelier.export.base import BaseModel
from atelier.export.card import Provenance, model_card
from atelier.export.families import family_of
from atelier.export.manifest import write_manifest
from atelier.export.merged import export_merged
from atelier.export.progress import saying
from atelier.export.publish import aside, publish, recover
from atelier.export.record import ExportRecord, Format, WrittenWeights
from atelier.export.reference import Reference
from atelier.export.reload import Exported, judge, reload_all


@dataclass(frozen=True)
class ExportRequest:
    """All an export is a function of: `tensors` float32 by the base's names, `lora` None where they
    were trained in full."""

    base: BaseModel
    tensors: Mapping[str, torch.Tensor]
    lora: LoraConfig | None
    config: ExportConfig
    reference: Reference
    provenance: Provenance


@dataclass(frozen=True)
class ExportedFormat:
    """A published directory and the sha256 of its manifest, which identifies all of it."""

    directory: Path
    record: ExportRecord
    manifest_sha256: str


@dataclass(frozen=True)
class ExportReport:
    """The formats that were published, and why others were not (format -> message)."""

    published: tuple[ExportedFormat, ...]
    refused: Mapping[Format, AtelierError]

    def require_complete(self) -> None:
        """Raise the first refusal, if any."""
        for error in self.refused.values():
            raise error


def export_formats(request: ExportRequest, output: Path, device: str) -> ExportReport:
    """Export every format of `request.config.formats` to `output/<format>`.

    Each format stands for itself: it is written aside, proven, then renamed into place. One that
    is refused leaves its earlier export and the other formats as they are.

    Args:
        request: what to export.
        output: directory that holds one directory a format.
        device: device of the clean process, cpu or cuda.
    """
    output.mkdir(parents=True, exist_ok=True)
    refused: dict[Format, AtelierError] = {}
    written: list[Exported] = []
    asides: list[Path] = []
    try:
        for kind in dict.fromkeys(request.config.formats):
            recover(output / kind)
            asides.append(aside(output / kind))
            try:
                with saying(f"writing {kind}"):
                    written.append(_write(kind, request, asides[-1]))
            except AtelierError as error:
                refused[kind] = error
        published = _prove_and_publish(request, written, output, device, refused)
    finally:
        for path in asides:
            shutil.rmtree(path, ignore_errors=True)
    return ExportReport(tuple(published), refused)


def _write(kind: Format, request: ExportRequest, directory: Path) -> Exported:
    dtype = request.config.dtype if kind == "merged" else "float32"
    weights = _write_weights(kind, request, directory, dtype)
    record = ExportRecord.new(kind, dtype, request.base, weights, request.reference.effect)
    exported = Exported(directory, record, request.base.directory)
    request.reference.save(exported.reference)
    request.reference.save_source(directory)
    return exported


def _write_weights(
    kind: Format, request: ExportRequest, directory: Path, dtype: str
) -> WrittenWeights:
    if kind == "merged":
        weights = export_merged(
            request.base, request.tensors, request.lora, getattr(torch, dtype), directory
        )
        require_survival(weights, request.config, request.lora is not None)
        return weights
    if request.lora is None:
        raise ConfigError("export.formats: adapter needs policy.trainable: lora")
    return export_adapter(request.base, request.tensors, request.lora, directory)


def require_survival(weights: WrittenWeights, config: ExportConfig, lora: bool) -> None:
    """Refuse 16-bit weights that rounding took too much of the update from (survival.py).

    Raises:
        ConfigError: less than `export.min_update_survival` survived.
    """
    share = weights.update_survival or 0.0
    if config.dtype == "float32" or share >= config.min_update_survival:
        return
    way = (
        "use the adapter (export.formats: [adapter]), which keeps the update in float32 beside the "
        "base, or export.dtype: float32"
        if lora
        else "use export.dtype: float32, or train with policy.trainable: lora and use the adapter"
    )
    raise ConfigError(
        f"export.dtype: {config.dtype} keeps {share:.1%} of the update "
        f"({weights.elements_changed or 0:.1%} of its elements change at all), under "
        f"export.min_update_survival: {config.min_update_survival:.0%}: {way}"
    )


def _prove_and_publish(
    request: ExportRequest,
    written: Sequence[Exported],
    output: Path,
    device: str,
    refused: dict[Format, AtelierError],
) -> list[ExportedFormat]:
    published: list[ExportedFormat] = []
    if not written:
        return published
    names = " and ".join(exported.record.format for exported in written)
    with saying(f"reloading {names} in a clean process on {device}"):
        outcomes = reload_all(written, device)
    for exported, outcome in zip(written, outcomes, strict=True):
        kind, directory = exported.record.format, exported.directory
        try:
            if kind == "adapter":
                family_of(exported.record.family).check_adapter(directory, exported.record)
            record = exported.record.measured(judge(exported, outcome))
        except CheckpointError as error:
            refused[kind] = error
            continue
        record.write(directory)
        card = model_card(record, request.base, request.reference, request.provenance)
        (directory / "README.md").write_text(card, encoding="utf-8")
        manifest = write_manifest(directory)
        publish(directory, output / kind)
        published.append(ExportedFormat(output / kind, record, manifest))
    return published
