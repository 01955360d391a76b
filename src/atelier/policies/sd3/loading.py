"""Loading a Stable Diffusion 3 pipeline without the chatter of its libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from diffusers import StableDiffusion3Pipeline
from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging

from atelier.config.paths import from_root
from atelier.errors import ConfigError


def load_pipeline(path: str) -> StableDiffusion3Pipeline:
    """The pipeline of a directory (absolute, or relative to the repository) or hub id, in float32.

    Raises ConfigError when it is no Stable Diffusion 3 pipeline that can be loaded.
    """
    local = from_root(path)
    try:
        with _quietly():
            pipeline = StableDiffusion3Pipeline.from_pretrained(
                local if local.is_dir() else path, dtype=torch.float32
            )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.path: {path!r} is not a Stable Diffusion 3 pipeline that can be "
            f"loaded ({error})"
        ) from error
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars and no warnings: a pipeline's third text encoder may be of any class."""
    verbosity = diffusers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        diffusers_logging.set_verbosity(verbosity)
        diffusers_logging.enable_progress_bar()
        if bars:
            transformers_logging.enable_progress_bar()
