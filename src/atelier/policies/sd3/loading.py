"""Loading the parts of a Stable Diffusion 3 pipeline, each in its dtype, when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
from diffusers.utils import logging as diffusers_logging
from torch import nn
from transformers.utils import logging as transformers_logging

from atelier.config.paths import from_root
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import Dtype
from atelier.model_files import quietly, require_sound, telling, without_bars

_TEXT = ("text_encoder", "text_encoder_2", "text_encoder_3")
_TOKENIZERS = ("tokenizer", "tokenizer_2", "tokenizer_3")


def locate(policy: PolicyConfig) -> Path:
    """The pipeline's directory: `policy.path` (absolute, or relative to the repository), or that
    of a hub id in the hub's cache, where only the files that a pipeline loads are fetched.

    Raises ConfigError when it is neither.
    """
    local = from_root(policy.path)
    if local.is_dir():
        return local
    with _telling(policy), _quietly():
        return Path(
            StableDiffusion3Pipeline.download(
                policy.path, revision=policy.revision, use_safetensors=True
            )
        )


def load_image_parts(directory: Path, policy: PolicyConfig) -> StableDiffusion3Pipeline:
    """Transformer, autoencoder and scheduler, on the CPU; the text encoders are not read.

    Weights go from the files straight into the dtype they are held in, without a second copy.

    Raises ConfigError when the directory holds no such pipeline.
    """
    absent = dict.fromkeys((*_TEXT, *_TOKENIZERS))
    dtypes = {"transformer": policy.base_dtype, "vae": policy.vae.dtype}
    parts = {name: _part(directory, policy, name, dtype) for name, dtype in dtypes.items()}
    return _load(directory, policy, **parts, **absent)


def load_text_encoders(
    directory: Path, policy: PolicyConfig, device: torch.device
) -> StableDiffusion3Pipeline:
    """A pipeline of text encoders only, frozen, on `device`, in policy.text.dtype.

    Its transformer holds no memory: without a third encoder `encode_prompt` asks it for a width.
    """
    with _telling(policy), torch.device("meta"):
        shape = SD3Transformer2DModel.load_config(directory / "transformer")
        transformer = SD3Transformer2DModel.from_config(shape)
    encoders = {name: _part(directory, policy, name, policy.text.dtype) for name in _TEXT}
    pipeline = _load(directory, policy, **encoders, transformer=transformer, vae=None)
    for name in _TEXT:
        encoder: nn.Module | None = getattr(pipeline, name)
        if encoder is not None:
            encoder.requires_grad_(False).eval().to(device)
    return pipeline


def _part(directory: Path, policy: PolicyConfig, name: str, dtype: Dtype) -> nn.Module | None:
    """A model of the pipeline, None where it has none; by itself, for a pipeline does not tell of
    weights that its files lack, and makes random ones.

    Raises ConfigError when it cannot be loaded, or its weights are not all that it has and numbers.
    """
    with _telling(policy):
        library, kind = StableDiffusion3Pipeline.load_config(directory).get(name) or ("", "")
    if library not in ("diffusers", "transformers"):
        return None  # the pipeline says what it does not know
    at = {"torch_dtype" if library == "diffusers" else "dtype": getattr(torch, dtype)}
    with _telling(policy), _quietly():
        model, info = getattr(import_module(library), kind).from_pretrained(
            directory, subfolder=name, output_loading_info=True, **at
        )
    require_sound(directory / name, model, info)
    return model


def _load(directory: Path, policy: PolicyConfig, **settings: Any) -> StableDiffusion3Pipeline:
    with _telling(policy), _quietly():
        pipeline = StableDiffusion3Pipeline.from_pretrained(directory, **settings)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _telling(policy: PolicyConfig) -> AbstractContextManager[None]:
    at = f" at revision {policy.revision}" if policy.revision else ""
    return telling(
        f"policy.path: {policy.path!r}{at} is not a Stable Diffusion 3 pipeline that can be loaded"
    )


@contextmanager
def _quietly() -> Iterator[None]:
    """No warnings of diffusers: a pipeline's third text encoder may be of any class."""
    with quietly(diffusers_logging), without_bars(transformers_logging):
        yield
