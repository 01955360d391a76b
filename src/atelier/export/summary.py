"""export/summary.json: what the last export of a run published and refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from atelier.export.formats import ExportedFormat, ExportReport
from atelier.tracking.run_directory import write_json


def write_summary(report: ExportReport, output: Path) -> None:
    """Write the summary, unless nothing was published: then the earlier one stays true."""
    if report.published:
        write_json(output / "summary.json", summarize(report))


def summarize(report: ExportReport) -> dict[str, Any]:
    """Plain values: {"published": {format: {...}}, "refused": {format: message}}."""
    return {
        "published": {one.record.format: _format(one) for one in report.published},
        "refused": {kind: str(error) for kind, error in report.refused.items()},
    }


def _format(one: ExportedFormat) -> dict[str, Any]:
    record = one.record
    said = {
        "directory": one.directory.name,
        "manifest_sha256": one.manifest_sha256,
        "dtype": record.dtype,
        "tensors": record.weights.tensors,
        "update_survival": record.weights.update_survival,
        "elements_changed": record.weights.elements_changed,
        "difference": asdict(record.difference) if record.difference else None,
        "effect": asdict(record.effect),
    }
    if record.log_prob_difference and record.log_prob_effect:
        said["log_prob_difference"] = asdict(record.log_prob_difference)
        said["log_prob_effect"] = asdict(record.log_prob_effect)
        said["greedy_equal"] = record.greedy_equal
    return said
