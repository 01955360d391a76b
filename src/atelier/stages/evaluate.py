"""Evaluate the trained model on the same prompts and noise as the baseline, and compare."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atelier.config.schema import RunConfig
from atelier.errors import CheckpointError
from atelier.stages import baseline
from atelier.stages.frame import Stage, open_stage
from atelier.stages.remote_servers import require_answers
from atelier.stages.run_file import shown_path
from atelier.tracking.run_directory import (
    RunDirectory,
    all_checkpoints,
    pruned_checkpoints,
    write_json,
)

logger = logging.getLogger(__name__)

OUTPUTS = (*baseline.OUTPUTS, "comparison.json")


def run(run: RunDirectory) -> dict[str, Any]:
    """Write evaluate/{images, scores.jsonl, summary.json, comparison.json}; return the means,
    and for every metric the paired difference to the baseline with its 95 % interval."""
    own = stage(run)
    return own.execute(lambda: _work(own))


def stage(run: RunDirectory) -> Stage:
    """The stage of a run, its inputs found."""
    return open_stage("evaluate", run, _inputs, OUTPUTS)


def last_checkpoint(run: RunDirectory) -> Path:
    """The newest checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    found = all_checkpoints(run.checkpoints)
    if not found:
        pruned = pruned_checkpoints(run.checkpoints)
        why = f"{pruned}; train anew" if pruned else "train first"
        raise CheckpointError(f"{shown_path(run.checkpoints)}: no checkpoint: {why}")
    return found[-1]


def _inputs(run: RunDirectory, config: RunConfig) -> list[Path]:
    checkpoint = last_checkpoint(run) / "MANIFEST.json"
    return [*baseline.inputs(run, config), checkpoint, run.baseline / "scores.jsonl"]


def _work(stage: Stage) -> dict[str, Any]:
    from atelier.evaluation.files import read_evaluation
    from atelier.evaluation.results import compare
    from atelier.stages.heldout import evaluate_weights
    from atelier.training.checkpoint import read_weights, verify_manifest

    require_answers(stage.config, rewards=False)
    checkpoint = last_checkpoint(stage.run)
    verify_manifest(checkpoint)
    weights = read_weights(checkpoint, stage.config.export.weights)
    after = evaluate_weights(stage.run, stage.config, stage.folder, weights)
    before = read_evaluation(stage.run.baseline)
    comparisons = compare(before, after, stage.config.evaluation.bootstrap_samples)
    rows = [asdict(one) for one in comparisons]
    write_json(stage.folder / "comparison.json", rows)
    means = {name: after.mean(name) for name in after.summary["metrics"]}
    logger.info("evaluate: %s", baseline.describe(means))
    return {
        "suite": after.summary["suite"],
        "images": len(after.rows),
        "checkpoint": checkpoint.name,
        "weights": stage.config.export.weights,
        **means,
        "difference": {
            row["metric"]: {"mean": row["difference"], "low": row["low"], "high": row["high"]}
            for row in rows
        },
    }
