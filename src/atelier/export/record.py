"""verification/record.json: what an exported directory claims, and `verify` holds it to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from atelier.errors import CheckpointError
from atelier.export.base import BasePipeline, local_base
from atelier.export.reference import ImageDifference
from atelier.tracking.run_directory import write_json

VERIFICATION = "verification"  # a folder, so that no loader takes its files for weights
Format = Literal["adapter", "merged"]


@dataclass(frozen=True)
class WrittenWeights:
    """Weights as written: how many tensors, their digest (clean_process.tensors_digest), the LoRA
    scales, and for merged ones the share of the update that survived rounding (survival.py)."""

    tensors: int
    digest: str
    scaling: list[float]
    update_survival: float | None = None
    elements_changed: float | None = None


@dataclass(frozen=True)
class ExportRecord:
    """One exported directory. `difference` is what the clean process measured at export."""

    format: Format
    dtype: str
    base: str
    base_is_local: bool
    base_sha256: str
    weights: WrittenWeights
    effect: ImageDifference
    difference: ImageDifference | None = None

    @classmethod
    def new(
        cls,
        kind: Format,
        dtype: str,
        base: BasePipeline,
        weights: WrittenWeights,
        effect: ImageDifference,
    ) -> ExportRecord:
        return cls(
            kind,
            dtype,
            base.path,
            local_base(base.path) is not None,
            base.transformer_sha256(),
            weights,
            effect,
        )

    def measured(self, difference: ImageDifference) -> ExportRecord:
        return replace(self, difference=difference)

    def write(self, directory: Path) -> None:
        write_json(directory / VERIFICATION / "record.json", asdict(self))


def read_record(directory: Path) -> ExportRecord:
    """Read what `directory` claims.

    Raises:
        CheckpointError: there is no record, or it is not one.
    """
    path = directory / VERIFICATION / "record.json"
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields["weights"] = WrittenWeights(**fields["weights"])
        for name in ("effect", "difference"):
            fields[name] = ImageDifference(**fields[name]) if fields[name] else None
        if fields["format"] not in get_args(Format) or not isinstance(fields["base"], str):
            raise ValueError(f"format {fields['format']!r}, base {fields['base']!r}")
        return ExportRecord(**fields)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: missing: {directory} is not an exported directory"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not an export's record: {error!r}") from error
