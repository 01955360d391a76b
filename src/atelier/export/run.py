"""Export the last checkpoint of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from atelier.config.digest import stage_digest
from atelier.config.schema import RunConfig
from atelier.data.keys import key
from atelier.data.prompts import read_prompts
from atelier.errors import CheckpointError, ConfigError
from atelier.export.base import open_base
from atelier.export.card import Provenance
from atelier.export.formats import ExportReport, ExportRequest, export_formats
from atelier.export.manifest import file_sha256
from atelier.export.reference import Reference
from atelier.export.summary import write_summary
from atelier.export.verify import resolve_device
from atelier.policies.sd3.policy import SD3Policy
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import MANIFEST, latest_checkpoint, verify_manifest


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
    tensors = _load_weights(checkpoint, config)
    device = resolve_device(config.launch.device)
    request = ExportRequest(
        base=open_base(config.policy.path),
        tensors=tensors,
        lora=config.policy.lora if config.policy.trainable == "lora" else None,
        config=config.export,
        reference=make_reference(config, tensors, _prompts(run, config), device),
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


def make_reference(
    config: RunConfig, tensors: Mapping[str, Tensor], prompts: list[str], device: str
) -> Reference:
    """Images of the trainer's policy for `prompts`, before and after the tensors are loaded.

    The transformer computes in float32 even where training used autocast: the export is compared
    to 1/255, and what is exported are the weights, not the rounding of one training run.
    """
    policy = SD3Policy.load(
        config.policy.model_copy(update={"dtype": "float32"}),
        config.rollout,
        config.evaluation,
        config.train.seed,
        device,
    )
    keys = [key("export", config.evaluation.seed, index) for index in range(len(prompts))]
    latents = policy.noise(keys)[:, 0]
    base_images = policy.generate_from(policy.module, prompts, latents)
    _load_into(policy.trainable(), tensors)
    return Reference(
        latents=latents,
        images=policy.generate_from(policy.module, prompts, latents),
        base_images=base_images,
        prompts=prompts,
        call={
            "num_inference_steps": config.evaluation.num_inference_steps,
            "guidance_scale": config.evaluation.guidance_scale,
            "max_sequence_length": config.policy.max_sequence_length,
        },
    )


def _load_into(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    if set(parameters) != set(tensors):
        raise CheckpointError(
            f"the checkpoint holds {len(tensors)} tensors, the policy trains {len(parameters)}; "
            f"only on one side: {sorted(set(parameters) ^ set(tensors))[:3]}"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _load_weights(checkpoint: Path, config: RunConfig) -> dict[str, Tensor]:
    if config.export.weights == "raw":
        return load_file(checkpoint / "trainable.safetensors")
    averaged = checkpoint / "ema.safetensors"
    if not averaged.exists():
        raise ConfigError(
            f"export.weights: ema, but {checkpoint} holds no moving average "
            "(train.ema.enabled: false): set export.weights: raw"
        )
    return load_file(averaged)


def _prompts(run: RunDirectory, config: RunConfig) -> list[str]:
    """The first held-out prompts, `export.verify_prompts` of them."""
    heldout = read_prompts(run.data / "heldout.parquet")
    return [prompt.text for prompt in heldout[: config.export.verify_prompts]]
