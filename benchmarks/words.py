"""Images with words in them, as OCR meets them, out of an autoencoder of random weights.

By itself it decodes to noise, in which detection finds words everywhere, each to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from diffusers import AutoencoderKL
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

WORDS = "Fresh bread\nevery day"
FAINT = 0.05  # images differ, and none of the noise looks like a letter


@contextmanager
def words_are_drawn() -> Iterator[None]:
    """Inside, what is decoded is a shade over a picture of WORDS."""
    plain = AutoencoderKL.decode

    def decode(self: AutoencoderKL, latents: Tensor, return_dict: bool = False) -> tuple[Tensor]:
        (images,) = plain(self, latents, return_dict=False)
        return (picture(images.shape[-1], images.device) + FAINT * images.float(),)

    AutoencoderKL.decode = decode
    try:
        yield
    finally:
        AutoencoderKL.decode = plain


@cache
def picture(side: int, device: torch.device) -> Tensor:
    """Black words on light grey, float32 [3, side, side] in [-1, 1]."""
    drawn = Image.new("L", (side, side), 200)
    font = ImageFont.load_default(side / 10)
    ImageDraw.Draw(drawn).multiline_text((side / 8, side / 3), WORDS, fill=0, font=font)
    return torch.from_numpy(np.array(drawn)).to(device).expand(3, -1, -1) / 127.5 - 1
