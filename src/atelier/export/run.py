"""Export the last checkpoint of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atelier.config.digest import stage_digest
from atelier.config.schema import PolicyConfig, RunConfig
from atelier.data.prompts import Prompt, read_prompts
from atelier.errors import CheckpointError
from atelier.evaluation.requests import evaluation_key
from atelier.export.base import open_base
from atelier.export.card import Provenance
from atelier.export.formats import ExportReport, ExportRequest, export_formats
from atelier.export.manifest import file_sha256
from atelier.export.reference import Reference
from atelier.export.summary import write_summary
from atelier.policies.sd3.policy import SD3Policy
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import (
    MANIFEST,
    latest_checkpoint,
    read_weights,
    verify_manifest,
)
from atelier.training.distributed import join_world
from atelier.training.weights import put_weights


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
            does not reproduce the trainer's images.
        ConfigError: the base cannot be opened, or 16 bit loses too much of the update. Formats
            that hold are published before either is raised.
    """
    checkpoint = latest_checkpoint(run.checkpoints)
    if checkpoint is None:
        raise CheckpointError(f"{run.checkpoints}: no checkpoint: train before exporting")
    verify_manifest(checkpoint)
    tensors = read_weights(checkpoint, config.export.weights)
    prompts = read_prompts(run.data / "heldout.parquet")[: config.export.verify_prompts]
    with join_world(config.launch) as world:  # the threads and the device of the evaluation
        device = world.device.type
        reference = make_reference(config, tensors, prompts, device)
    request = ExportRequest(
        base=open_base(config.policy.path, config.policy.revision),
        tensors=tensors,
        lora=config.policy.lora if config.policy.trainable == "lora" else None,
        config=config.export,
        reference=reference,
        provenance=Provenance(
            recipe=config.recipe,
            seed=config.train.seed,
            step=json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))["step"],
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


def _in_float32(policy: PolicyConfig) -> PolicyConfig:
    full = {"dtype": "float32"}
    parts = {"text": policy.text.model_copy(update=full), "vae": policy.vae.model_copy(update=full)}
    return policy.model_copy(update={**full, "base_dtype": "float32", **parts})


def make_reference(
    config: RunConfig, tensors: Mapping[str, Tensor], prompts: Sequence[Prompt], device: str
) -> Reference:
    """Images of the trainer's policy for `prompts`, before and after the tensors are loaded.

    Prompts and noise are those of the evaluation. Every part computes in float32 whatever training
    did: the export is compared to 1/255, and what is exported are the weights, not the rounding
    of one training run.
    """
    texts = [prompt.text for prompt in prompts]
    policy = SD3Policy.load(
        _in_float32(config.policy),
        config.rollout,
        config.evaluation,
        config.train.seed,
        device,
        prompts=texts,
    )
    latents = policy.noise([evaluation_key(config.evaluation.seed, one) for one in prompts])[:, 0]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as in clean_process.py
        before = policy.generate_from(policy.module, texts, latents)
        put_weights(policy.trainable(), tensors)
        after = policy.generate_from(policy.module, texts, latents)
    return Reference(
        latents=latents,
        images=after,
        base_images=before,
        prompts=texts,
        call={
            "num_inference_steps": config.evaluation.num_inference_steps,
            "guidance_scale": config.evaluation.guidance_scale,
            "max_sequence_length": config.policy.max_sequence_length,
        },
    )
