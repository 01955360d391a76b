"""README.md of an exported directory: the model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from atelier import __version__
from atelier.export.base import BasePipeline
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
    record: ExportRecord, base: BasePipeline, reference: Reference, provenance: Provenance
) -> str:
    """The card as Markdown with the hub's front matter."""
    sections = [
        _front_matter(record, base),
        f"# {record.format} export of a GRPO run on {base.path}\n",
        _how_to_load(record, base, reference),
        _recipe(record, provenance),
        _results(provenance),
        _proof(record),
        _licence(record, base),
    ]
    return "\n".join(section for section in sections if section)


def _front_matter(record: ExportRecord, base: BasePipeline) -> str:
    front: dict[str, object] = {
        "base_model": base.path,
        "base_model_relation": "adapter" if record.format == "adapter" else "finetune",
        "library_name": "diffusers",
        "pipeline_tag": "text-to-image",
        "tags": ["atelier", "grpo"] + (["lora"] if record.format == "adapter" else []),
    }
    if licence := base.licence():
        front["license"] = licence
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n"


def _how_to_load(record: ExportRecord, base: BasePipeline, reference: Reference) -> str:
    merged = record.format == "merged"
    source = "path/to/this/directory" if merged else base.path
    arguments = ", ".join(f"{name}={value}" for name, value in reference.call.items())
    lines = [
        "import torch",
        "from diffusers import DiffusionPipeline",
        f'pipe = DiffusionPipeline.from_pretrained("{source}", dtype=torch.{record.dtype})',
        None if merged else 'pipe.load_lora_weights("path/to/this/directory")',
        f"image = pipe({reference.prompts[0]!r}, {arguments}).images[0]",
    ]
    code = "\n".join(line for line in lines if line)
    return f"## Load\n\n```python\n{code}\n```\n"


def _recipe(record: ExportRecord, provenance: Provenance) -> str:
    rows = {
        "base": f"{record.base} (transformer sha256 `{record.base_sha256}`)",
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
    difference, effect, weights = record.difference, record.effect, record.weights
    text = (
        f"## Proof\n\nReloaded in a clean process with plain diffusers: {weights.tensors} tensors, "
    )
    if difference is not None:
        text += (
            f"images within {difference.max * 255:.0f}/255 of the trainer's (mean "
            f"{difference.mean * 255:.3f}/255); training moved them by {effect.mean * 255:.2f}/255 "
            "in the mean. "
        )
    if record.dtype != "float32" and weights.update_survival is not None:
        text += (
            f"Merged in float32 and rounded once to {record.dtype}: "
            f"{weights.update_survival:.1%} of the update survived, "
            f"{weights.elements_changed or 0:.1%} of its elements changed. "
        )
    return text + "`atelier verify` repeats this; MANIFEST.json lists the sha256 of every file.\n"


def _licence(record: ExportRecord, base: BasePipeline) -> str:
    named = f"`{licence}`" if (licence := base.licence()) else "stated in its own model card"
    own = " (kept here as BASE_README.md, where it has one)" if record.format == "merged" else ""
    return (
        f"## Licence\n\nThis is a derivative of {base.path}; the base's licence applies: "
        f"{named}{own}.\n"
    )
