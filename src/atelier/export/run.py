"""Export the last checkpoint of a run."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping

import torch

from atelier.config.digest import stage_digest
from atelier.config.schema import RunConfig
from atelier.data.prompts import read_prompts
from atelier.errors import CheckpointError
from atelier.export.card import Provenance
from atelier.export.families import family_of
from atelier.export.formats import ExportReport, ExportRequest, export_formats
from atelier.export.manifest import file_sha256
from atelier.export.progress import saying
from atelier.export.summary import write_summary
from atelier.tracking.run_directory import RunDirectory, read_json_object
from atelier.training.checkpoint import (
    MANIFEST,
    latest_checkpoint,
    read_weights,
    verify_manifest,
)
from atelier.training.distributed import join_world


def export_run(
    run: RunDirectory,
    config: RunConfig,
    results: Mapping[str, tuple[float, float]] | None = None,
) -> ExportReport:
    """Export the run's last checkpoint to `run.export/<format>`, proven by reloading.

    `export/summary.json` says what was published and what was refused.

    Args:
        run: a run with a checkpoint and held-out prompts.
        config: the export stage's configuration.
        results: held-out metrics before and after training, for the model card.

    Raises:
        CheckpointError: no checkpoint, an altered one, one of another base, or an export that
            does not reproduce what the trainer makes.
        ConfigError: the base cannot be opened, or 16 bit loses too much of the update. Formats
            that hold are published before either is raised.
    """
    checkpoint = latest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"{run.checkpoints}: no checkpoint: train before exporting")
    verify_manifest(checkpoint)
    family = family_of(config.policy.family)
    tensors = read_weights(checkpoint, config.export.weights)
    prompts = read_prompts(run.data / "heldout.parquet")[: config.export.verify_prompts]
    with join_world(config.launch) as world:  # the device of the evaluation
        device = world.device.type
        # A rank's, as of the evaluation, and no more than there are cores, which sums here may
        # differ by: threads that wait for each other take many times as long. The clean process
        # takes as many.
        torch.set_num_threads(min(config.launch.threads_of_a_rank, len(os.sched_getaffinity(0))))
        with saying(f"making what it must reproduce, of {len(prompts)} prompts"):
            reference = family.make_reference(config, tensors, prompts, device)
    _give_back(device)
    request = ExportRequest(
        base=family.base.of(config),
        tensors=family.base_names(tensors),
        lora=config.policy.lora if config.policy.trainable == "lora" else None,
        config=config.export,
        reference=reference,
        provenance=Provenance(
            recipe=config.recipe,
            seed=config.train.seed,
            step=read_json_object(checkpoint / "state.json", CheckpointError)["step"],
            weights=config.export.weights,
            digests={
                "configuration": stage_digest(config, "export"),
                "checkpoint": file_sha256(checkpoint / MANIFEST),
            },
            results=results or {},
        ),
    )
    report = export_formats(request, run.export, device)
    write_summary(report, run.export)
    report.require_complete()
    return report


def _give_back(device: str) -> None:
    """Memory of the model that made the reference, to the process that reloads the export."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
