"""Learning from captioned pictures: each is noised to a level, and the velocity there predicted.

A level is one of the 1000 that the pipeline's scheduler is configured with, drawn evenly and then
shifted; latents, noise and level are float32. Without guidance. Source: DeepGen-RL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from atelier.algorithms.supervised import flow_matching_loss
from atelier.data.ground_truth import ground_truth_image, required_picture
from atelier.data.keys import key, uniform
from atelier.data.pictures import square
from atelier.dynamics.schedules import LEVELS, training_level
from atelier.dynamics.transitions import noised
from atelier.policies.base import Captioned
from atelier.policies.flow.model import FlowModel
from atelier.transfer import to_device


def picture_losses(
    model: FlowModel,
    module: nn.Module,
    shift: float,
    batch: Sequence[Captioned],
    pixels: np.ndarray,
) -> Tensor:
    """Of each picture [B], with gradients to `module` alone. pixels: uint8 [B, side, side, 3]."""
    clean = model.latents(pixels, [key("encoding", one.key) for one in batch])
    noise = model.noise([key("noise", one.key) for one in batch])[:, 0]
    drawn = [training_level(uniform("level", one.key), shift) for one in batch]
    level = to_device(torch.tensor(drawn, dtype=torch.float32), clean.device)
    conditions = model.encode_texts([one.caption for one in batch])
    noisy = noised(clean, noise, level)
    velocity = model.velocity(module, noisy, LEVELS * level, conditions, guidance=1.0)
    return flow_matching_loss(velocity, clean, noise)


def picture_pixels(one: Captioned, side: int) -> np.ndarray:
    """The middle of the picture, uint8 [side, side, 3].

    Raises:
        DataError: it is not there any more, or damaged.
    """
    picture = required_picture(ground_truth_image(one.prompt, side), one.prompt, "ground-truth")
    return np.asarray(square(picture, side))
