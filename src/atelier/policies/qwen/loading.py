"""Opening a Qwen-Image pipeline: the part that is trained, and the frozen rest, each by itself.

The pipeline never gets the encoder: it would encode with whatever is trained by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    DiffusionPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from diffusers.utils import logging as diffusers_logging
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from atelier.config.facts.qwen import pipeline_kind, require_shifting
from atelier.config.paths import from_root, is_file
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import Dtype
from atelier.errors import ConfigError
from atelier.model_files import quietly, require_sound, telling, without_bars
from atelier.policies.qwen.areas import Areas
from atelier.policies.qwen.environment import Environment, Settings

_FOLDERS = {QwenImageTransformer2DModel: "transformer", AutoencoderKLQwenImage: "vae"}
PIPELINES = {"text": QwenImagePipeline, "edit": QwenImageEditPlusPipeline}


def locate(policy: PolicyConfig) -> Path:
    """The pipeline's directory: `policy.path` (absolute, or relative to the repository), or that of
    a hub id in the hub's cache, where only the files that a pipeline loads are fetched.

    Raises:
        ConfigError: it is neither, or no Qwen-Image pipeline whose parts fit together.
    """
    local = from_root(policy.path)
    directory = local if local.is_dir() else _downloaded(policy)
    pipeline_kind(directory)
    require_shifting(directory)
    return directory


def load_encoder(
    directory: Path, policy: PolicyConfig, dtype: torch.dtype | None = None
) -> Qwen2_5_VLForConditionalGeneration:
    """The text encoder, in eval mode on the CPU.

    Args:
        dtype: what it is held in; default: float32 where all of it is trained, else
            policy.base_dtype.

    Raises:
        ConfigError: it cannot be loaded, or its weights are not all that it has and numbers.
    """
    held = "float32" if policy.trainable == "full" else policy.base_dtype
    with _opening(policy):
        encoder, info = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            directory / "text_encoder",
            dtype=dtype or getattr(torch, held),
            attn_implementation="sdpa",
            output_loading_info=True,
        )
    require_sound(directory / "text_encoder", encoder, info)
    return encoder.eval()


def load_pipeline(
    directory: Path, config: RunConfig
) -> QwenImagePipeline | QwenImageEditPlusPipeline:
    """Everything but the text encoder, on the CPU, each part in its dtype.

    Raises:
        ConfigError: the directory holds no such pipeline, the dtypes do not go together, or
            rollout.environment.adapter is none of its transformer's.
    """
    policy, environment = config.policy, config.rollout.environment
    kind = pipeline_kind(directory)
    if kind == "edit" and policy.vae.dtype != environment.dtype:
        raise ConfigError(
            f"policy.vae.dtype: {policy.vae.dtype}, and rollout.environment.dtype is "
            f"{environment.dtype}; an edit's source image goes from the one into the other: use "
            "the same"
        )
    parts = {
        "transformer": _part(directory, policy, QwenImageTransformer2DModel, environment.dtype),
        "vae": _part(directory, policy, AutoencoderKLQwenImage, policy.vae.dtype),
    }
    with _opening(policy):
        pipeline = PIPELINES[kind].from_pretrained(directory, text_encoder=None, **parts)
    if environment.adapter is not None:
        _merge(pipeline, environment.adapter)
    return pipeline


def open_environment(
    pipeline: QwenImagePipeline | QwenImageEditPlusPipeline,
    config: RunConfig,
    device: torch.device | str,
) -> Environment:
    """The environment that a configuration describes."""
    rollout, policy = config.rollout, config.policy
    settings = Settings(
        side=policy.resolution,
        batch=rollout.environment.micro_batch_size or rollout.micro_batch_size,
        window=rollout.conditioning.window,
        preset=rollout.environment.preset,
        areas=areas_of(config),
        vae=policy.vae,
    )
    return Environment(pipeline, settings, device)


def painting_device(config: RunConfig, device: torch.device, rank: int) -> torch.device:
    """Where the images of a rank are painted: on its own device, or where there are GPUs that do
    nothing else (rollout.environment.gpus), on one of these, dealt out in turn.

    Raises:
        ConfigError: there is no such GPU.
    """
    gpus = config.rollout.environment.gpus
    if not gpus or device.type != "cuda":
        return device
    place, there = config.launch.processes + rank % gpus, torch.cuda.device_count()
    if place >= there:
        raise ConfigError(
            f"rollout.environment.gpus: rank {rank} paints on the GPU of number {place}, counted "
            f"from 0, and {there} are visible; lower it, or launch.processes"
        )
    return torch.device("cuda", place)


def areas_of(config: RunConfig) -> Areas:
    sides = config.rollout.environment
    return Areas(sides.condition_side**2, sides.reference_side**2)


def _downloaded(policy: PolicyConfig) -> Path:
    with _opening(policy):
        return Path(
            DiffusionPipeline.download(policy.path, revision=policy.revision, use_safetensors=True)
        )


def _part(directory: Path, policy: PolicyConfig, kind: Any, dtype: Dtype) -> Any:
    """The transformer or the autoencoder; by itself, for a pipeline tells of no missing weights."""
    name = _FOLDERS[kind]
    with _opening(policy):
        part, info = kind.from_pretrained(
            directory, subfolder=name, torch_dtype=getattr(torch, dtype), output_loading_info=True
        )
    require_sound(directory / name, part, info)
    return part


def _merge(pipeline: Any, adapter: str) -> None:
    """Add a LoRA's product to the transformer's weights, for good."""
    key, file = f"rollout.environment.adapter: {adapter}", from_root(adapter)
    if not is_file(file):
        raise ConfigError(f"{key}: there is no such file; download it, and name it here")
    with telling(f"{key} is no LoRA of this pipeline's transformer"), quietly(diffusers_logging):
        pipeline.load_lora_weights(str(file))
        pipeline.fuse_lora()
        pipeline.unload_lora_weights()


@contextmanager
def _opening(policy: PolicyConfig) -> Iterator[None]:
    """Without a word of the libraries, and with one about what is wrong with files."""
    at = f" at revision {policy.revision}" if policy.revision else ""
    what = f"policy.path: {policy.path!r}{at} is not a Qwen-Image pipeline that can be loaded"
    with telling(what), quietly(diffusers_logging), without_bars(transformers_logging):
        yield
