"""The parts of a Janus policy that rollouts of every shape are made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from atelier.config.sections.policy_parts import Dtype
from atelier.data.ground_truth import ground_truth_image, required_picture, source_image
from atelier.data.prompts import Prompt
from atelier.policies.janus.conversation import Conversation
from atelier.policies.janus.log_probs import ImageForm, Sampler
from atelier.policies.janus.module import JanusModule
from atelier.policies.janus.pixels import Pixels
from atelier.policies.janus.sampling import Generation
from atelier.policies.precision import computing_in


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
    dtype: Dtype

    def autocast(self) -> AbstractContextManager[None]:
        """The same in rollout and replay."""
        return computing_in(self.dtype, self.device)

    def sources(self, prompts: Sequence[Prompt]) -> list[Image.Image]:
        """What is to be edited, as the policy and the rewards see it.

        Raises:
            DataError: a prompt has no source image.
        """
        found = [required_picture(source_image(one), one, "source") for one in prompts]
        return [self.pixels.cropped(one) for one in found]

    def truths(self, prompts: Sequence[Prompt]) -> list[Image.Image]:
        """Ground truth, likewise.

        Raises:
            DataError: a prompt has none.
        """
        found = [required_picture(ground_truth_image(one), one, "ground-truth") for one in prompts]
        return [self.pixels.cropped(one) for one in found]


def stacked(images: Sequence[Image.Image]) -> np.ndarray:
    """uint8 [B, H, W, 3]."""
    return np.stack([np.asarray(one) for one in images])
