"""The parts of a Janus policy that rollouts of every shape are made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from atelier.data.ground_truth import ground_truth_image, source_image
from atelier.data.keys import key
from atelier.data.prompts import Prompt
from atelier.errors import DataError
from atelier.policies.base import Sample
from atelier.policies.janus.conversation import Conversation
from atelier.policies.janus.log_probs import ImageForm, Sampler
from atelier.policies.janus.module import JanusModule
from atelier.policies.janus.pixels import Pixels
from atelier.policies.janus.sampling import Generation

AUTOCAST_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Parts:
    """What a rollout needs beside the weights; `form` is of the log-probs of image tokens."""

    module: JanusModule
    conversation: Conversation
    pixels: Pixels
    generation: Generation
    sampler: Sampler
    form: ImageForm
    device: torch.device
    dtype: str

    def autocast(self) -> AbstractContextManager[None]:
        """The same in rollout and replay."""
        dtype = AUTOCAST_DTYPES[self.dtype]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def sources(self, prompts: Sequence[Prompt]) -> list[Image.Image]:
        """What is to be edited, as the policy and the rewards see it.

        Raises:
            DataError: a prompt has no source image.
        """
        return [self.pixels.cropped(_required(source_image(one), one, "source")) for one in prompts]

    def truths(self, prompts: Sequence[Prompt]) -> list[Image.Image]:
        """Ground truth, likewise.

        Raises:
            DataError: a prompt has none.
        """
        found = [_required(ground_truth_image(one), one, "ground-truth") for one in prompts]
        return [self.pixels.cropped(one) for one in found]


def _required(image: Image.Image | None, prompt: Prompt, kind: str) -> Image.Image:
    if image is None:
        raise DataError(f"prompt {prompt.prompt_id} ({prompt.text[:80]}) has no {kind} image")
    return image


def noise_key(seed: int, step: int, sample: Sample) -> int:
    """Of all that a sample draws in a step."""
    rest = (sample.round,) if sample.round else ()
    return key("tokens", seed, step, sample.index, *rest)


def stacked(images: Sequence[Image.Image]) -> np.ndarray:
    """uint8 [B, H, W, 3]."""
    return np.stack([np.asarray(one) for one in images])
