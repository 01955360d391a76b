"""README.md of an exported directory: the model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from atelier import __version__
from atelier.export.base import BaseModel
from atelier.export.families import family_of
from atelier.export.record import ExportRecord
from atelier.export.reference import Reference


@dataclass(frozen=True)
class Provenance:
    """Where the weights come from. `results` maps a metric to its value before and after."""

    recipe: str | None = None
    seed: int | None = None
    step: int | None = None
    weights: str = "ema"
    digests: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def model_card(
    record: ExportRecord, base: BaseModel, reference: Reference, provenance: Provenance
) -> str:
    """The card as Markdown with the hub's front matter."""
    sections = [
        _front_matter(record, base),
        f"# {record.format} export of a GRPO run on {base.path}\n",
        _how_to_load(record, base, reference),
        _recipe(record, base, provenance),
        _results(provenance),
        _proof(record),
        _licence(record, base),
    ]
    return "\n".join(section for section in sections if section)


def _front_matter(record: ExportRecord, base: BaseModel) -> str:
    family, adapter = family_of(record.family), record.format == "adapter"
    front: dict[str, object] = {
        "base_model": base.path,
        "base_model_relation": "adapter" if adapter else "finetune",
        "library_name": family.loads(record.format),
        "pipeline_tag": base.task,
        "tags": ["atelier", "grpo"] + (["lora"] if adapter else []),
    }
    if licence := base.licence():
        front["license"] = licence
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n"


def _how_to_load(record: ExportRecord, base: BaseModel, reference: Reference) -> str:
    code = "\n".join(family_of(base.family).loading_lines(record, base, reference))
    return f"## Load\n\n```python\n{code}\n```\n{_where_the_base_is(code, base)}"


def _where_the_base_is(code: str, base: BaseModel) -> str:
    """A path means something where it was trained only; a hub id everywhere."""
    if not base.is_local or f'"{base.path}"' not in code:
        return ""
    there = "on the machine" if Path(base.path).is_absolute() else "relative to the directory"
    return (
        f"\n`{base.path}` is a path, {there} where this was trained: put that of your copy in its "
        "place.\n"
    )


def _recipe(record: ExportRecord, base: BaseModel, provenance: Provenance) -> str:
    rows = {
        "base": f"{record.base} ({base.trained_part} sha256 `{record.base_sha256}`)",
        "recipe": provenance.recipe,
        "seed": provenance.seed,
        "step": provenance.step,
        "weights": {"ema": "moving average", "raw": "last step"}.get(
            provenance.weights, provenance.weights
        ),
        "dtype": record.dtype,
        **{f"{name} digest": f"`{value}`" for name, value in provenance.digests.items()},
        "made with": f"atelier {__version__}",
    }
    body = "\n".join(f"| {name} | {value} |" for name, value in rows.items() if value is not None)
    return f"## Where it comes from\n\n| | |\n|---|---|\n{body}\n"


def _results(provenance: Provenance) -> str:
    if not provenance.results:
        return ""
    body = "\n".join(
        f"| {name} | {before:.4g} | {after:.4g} |"
        for name, (before, after) in provenance.results.items()
    )
    return f"## Held-out results\n\n| metric | before | after |\n|---|---|---|\n{body}\n"


def _proof(record: ExportRecord) -> str:
    family, difference, weights = family_of(record.family), record.difference, record.weights
    text = (
        f"## Proof\n\nReloaded in a clean process with plain {family.loads(record.format)}: "
        f"{weights.tensors} tensors, "
    )
    if difference is not None:
        text += (
            f"images within {difference.max * 255:.0f}/255 of the trainer's (mean "
            f"{difference.mean * 255:.3f}/255); training moved them by "
            f"{record.effect.mean * 255:.2f}/255 in the mean. "
        )
    text += _log_probs(record)
    if record.dtype != "float32" and weights.update_survival is not None:
        text += (
            f"Merged in float32 and rounded once to {record.dtype}: "
            f"{weights.update_survival:.1%} of the update survived, "
            f"{weights.elements_changed or 0:.1%} of its elements changed. "
        )
    return text + "`atelier verify` repeats this; MANIFEST.json lists the sha256 of every file.\n"


def _log_probs(record: ExportRecord) -> str:
    difference, effect = record.log_prob_difference, record.log_prob_effect
    if difference is None or effect is None:
        return ""
    return (
        f"Log-probabilities of tokens are within {difference.max:.2g} of the trainer's (mean "
        f"{difference.mean:.2g}); training moved them by {effect.mean:.2g} in the mean. "
        f"{record.greedy_equal or 0:.1%} of the likeliest tokens are the trainer's. "
    )


def _licence(record: ExportRecord, base: BaseModel) -> str:
    named = f"`{licence}`" if (licence := base.licence()) else "stated in its own model card"
    own = " (kept here as BASE_README.md, where it has one)" if record.format == "merged" else ""
    return (
        f"## Licence\n\nThis is a derivative of {base.path}; the base's licence applies: "
        f"{named}{own}.\n"
    )
