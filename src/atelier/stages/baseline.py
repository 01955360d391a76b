"""Evaluate the model before training: what everything later is compared with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atelier.config.schema import RunConfig
from atelier.report.metric_names import direction_of, order_of
from atelier.stages.frame import Stage, open_stage
from atelier.stages.remote_servers import require_answers
from atelier.tracking.run_directory import SUITE_TABLES, RunDirectory

logger = logging.getLogger(__name__)

OUTPUTS = ("scores.jsonl", "summary.json", *SUITE_TABLES, "images/*.png", "images/*.txt")


def run(run: RunDirectory) -> dict[str, Any]:
    """Write baseline/{images, scores.jsonl, summary.json}; return the suite's means."""
    own = stage(run)
    return own.execute(lambda: _work(own))


def stage(run: RunDirectory) -> Stage:
    """The stage of a run, its inputs found."""
    return open_stage("baseline", run, inputs, OUTPUTS)


def inputs(run: RunDirectory, config: RunConfig) -> list[Path]:
    """Held-out prompts and, where it is a directory and not a hub id, the model."""
    return [run.data / "heldout.parquet", *local_model(config)]


def local_model(config: RunConfig) -> list[Path]:
    """Files and directories of what makes the images: the model, or its file of weights (an index
    with the files that it names) with its layout and what it was trained from, and an adapter of
    the environment's transformer. A hub id is identified by its name in the digest.

    Raises:
        ConfigError: an index is none, or names what is not there.
    """
    from atelier.config.paths import from_root, is_directory, is_file
    from atelier.weight_index import weight_files

    policy = config.policy
    bases = (policy.bases.vlm, policy.bases.pipeline, policy.bases.sft)
    named = (policy.path, policy.layout, *bases, config.rollout.environment.adapter)
    paths = [from_root(one) for one in named if one is not None]
    here = (path for path in paths if is_directory(path) or is_file(path))
    return [one for path in here for one in weight_files(path)]


def _work(stage: Stage) -> dict[str, Any]:
    require_answers(stage.config)
    from atelier.stages.heldout import evaluate_weights  # torch, only when there is work

    evaluation = evaluate_weights(stage.run, stage.config, stage.folder, weights=None)
    means = {name: evaluation.mean(name) for name in evaluation.summary["metrics"]}
    logger.info("baseline: %s", describe(means))
    return {"suite": evaluation.summary["suite"], "images": len(evaluation.rows), **means}


def describe(means: Mapping[str, float | None]) -> str:
    """The metrics a person follows, what matters most first, in one line."""
    known = {name: value for name, value in means.items() if value is not None}
    shown = [name for name in sorted(known, key=order_of) if direction_of(name) and "/" not in name]
    return "  ".join(f"{name} {known[name]:.3f}" for name in shown)
