"""verification/record.json: what an exported directory claims, and `verify` holds it to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from atelier.errors import CheckpointError
from atelier.export.base import BaseModel
from atelier.export.reference import Difference, Differences
from atelier.tracking.run_directory import write_json

VERIFICATION = "verification"  # a folder, so that no loader takes its files for weights
Format = Literal["adapter", "merged"]


@dataclass(frozen=True)
class WrittenWeights:
    """Weights as written: how many tensors, their digest (clean_process/digests.py), the LoRA
    scales, and for merged ones the share of the update that survived rounding (survival.py)."""

    tensors: int
    digest: str
    scaling: list[float]
    update_survival: float | None = None
    elements_changed: float | None = None


@dataclass(frozen=True)
class ExportRecord:
    """One exported directory: `effect` is how far training moved the model, `difference` how far
    the clean process was from the trainer at export.

    Attributes:
        effect, difference: of the images.
        family: of the policy.
        log_prob_effect, log_prob_difference: of tokens, where the family has tokens.
        greedy_equal: share of the likeliest tokens that the clean process drew as the trainer did.
        beside_base: whether a merged directory is loaded together with the base.
        frozen: digests of the parts that nobody trained (base.BaseModel.frozen).
    """

    format: Format
    dtype: str
    base: str
    base_is_local: bool
    base_sha256: str
    weights: WrittenWeights
    effect: Difference
    difference: Difference | None = None
    family: str = "sd3"
    log_prob_effect: Difference | None = None
    log_prob_difference: Difference | None = None
    greedy_equal: float | None = None
    beside_base: bool = False
    frozen: Mapping[str, str] | None = None

    @property
    def needs_base(self) -> bool:
        """Whether it is loaded together with the base."""
        return self.format == "adapter" or self.beside_base

    @classmethod
    def new(
        cls,
        kind: Format,
        dtype: str,
        base: BaseModel,
        weights: WrittenWeights,
        effect: Differences,
    ) -> ExportRecord:
        return cls(
            kind,
            dtype,
            base.path,
            base.is_local,
            base.weights_sha256(),
            weights,
            effect.images,
            family=base.family,
            log_prob_effect=effect.log_probs,
            beside_base=kind == "merged" and base.stays_beside,
            frozen=base.frozen() or None,
        )

    def measured(self, found: Differences) -> ExportRecord:
        return replace(
            self,
            difference=found.images,
            log_prob_difference=found.log_probs,
            greedy_equal=found.greedy,
        )

    def write(self, directory: Path) -> None:
        """Fields that say nothing are left out: records of one family have no others' fields."""
        defaults = {one.name: one.default for one in fields(self) if one.default is not MISSING}
        said = {
            name: value
            for name, value in asdict(self).items()
            if name not in defaults or value != defaults[name]
        }
        write_json(directory / VERIFICATION / "record.json", said)


def read_record(directory: Path) -> ExportRecord:
    """Read what `directory` claims.

    Raises:
        CheckpointError: there is no record, or it is not one.
    """
    path = directory / VERIFICATION / "record.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found["weights"] = WrittenWeights(**found["weights"])
        for name in ("effect", "difference", "log_prob_effect", "log_prob_difference"):
            found[name] = Difference(**found[name]) if found.get(name) else None
        if found["format"] not in get_args(Format) or not isinstance(found["base"], str):
            raise ValueError(f"format {found['format']!r}, base {found['base']!r}")
        return ExportRecord(**found)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: missing: {directory} is not an exported directory"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: not an export's record: {error!r}") from error
