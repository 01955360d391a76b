"""Between pixels and what the model has in their place: image codes, and features of seen images.

Source: FocusDiff and Janus-Pro-R1. All of it is frozen and without gradients; the image tokenizer
computes in the dtype that it is held in, outside of any autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import JanusForConditionalGeneration
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

from atelier.data.pictures import square
from atelier.policies.grey_levels import as_grey_levels

BATCH = 16
_SETTINGS = ("size", "min_size", "resample", "rescale_factor", "image_mean", "image_std")


class Pixels:
    """The frozen parts of a Janus model that deal with images.

    Args:
        janus: the model; where its parts are is where this computes.
        image_processor: the checkpoint's own, for what a seen image looks like.
        batch: images that are coded or decoded at once.
    """

    def __init__(
        self, janus: JanusForConditionalGeneration, image_processor: Any, batch: int = BATCH
    ) -> None:
        self._vq = janus.model.vqmodel
        self._vision, self._aligner = janus.model.vision_model, janus.model.aligner
        self._side = int(janus.config.vision_config.image_size)
        self._processor = exact_processor(image_processor)
        self._batch = batch

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: height, width, channels."""
        return self._side, self._side, 3

    def cropped(self, image: Image.Image | np.ndarray) -> Image.Image:
        """What is left of an image of any size when it is coded, in RGB."""
        return to_square(image, self._side)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> np.ndarray:
        """Images uint8 [B, H, W, 3] of image codes [B, N]."""
        decoded = [to_uint8(self._decoded(part)) for part in codes.split(self._batch)]
        return torch.cat(decoded).cpu().numpy()

    def _decoded(self, codes: Tensor) -> Tensor:
        with torch.autocast(codes.device.type, enabled=False):
            return self._vq.decode(codes).permute(0, 2, 3, 1)

    @torch.no_grad()
    def encode(self, images: Sequence[Image.Image | np.ndarray]) -> Tensor:
        """Codes [B, N] int64 of images of any size, on the model's device."""
        weight = self._vq.quantize.embedding.weight
        codes = []
        for part in _batches(images, self._batch):
            pixels = torch.stack([to_pixels(one, self._side) for one in part])
            with torch.autocast(weight.device.type, enabled=False):
                found = self._vq.encode(pixels.to(weight.device, weight.dtype)).image_tokens
            codes.append(found.view(len(part), -1))
        return torch.cat(codes)

    @torch.no_grad()
    def look(self, images: Sequence[Image.Image | np.ndarray]) -> Tensor:
        """Features [B, N, D] of seen images, as the language model takes them."""
        weight = self._aligner.fc1.weight
        features = []
        for part in _batches(images, self._batch):
            pictures = [_picture(one) for one in part]
            pixels = self._processor(pictures, return_tensors="pt")["pixel_values"]
            with torch.autocast(weight.device.type, enabled=False):
                seen = self._vision(pixels.to(weight.device, weight.dtype)).last_hidden_state
                features.append(self._aligner(seen))
        return torch.cat(features)


def exact_processor(image_processor: Any) -> JanusImageProcessorPil:
    """One with the same settings that resizes as the original did: torchvision's is up to two grey
    levels off."""
    if isinstance(image_processor, JanusImageProcessorPil):
        return image_processor
    return JanusImageProcessorPil(**{name: getattr(image_processor, name) for name in _SETTINGS})


def to_square(image: Image.Image | np.ndarray, side: int) -> Image.Image:
    """The middle of an image, as `data.pictures.square` takes it."""
    return square(_picture(image), side)


def to_pixels(image: Image.Image | np.ndarray, side: int) -> Tensor:
    """The same as [3, side, side] float32 in [-1, 1]."""
    values = np.asarray(to_square(image, side), np.float32)
    return torch.from_numpy(values / 127.5 - 1).permute(2, 0, 1)


def to_uint8(decoded: Tensor) -> Tensor:
    """Grey levels of decoded values in about [-1, 1]: clipped, then cut off, not rounded.

    Raises:
        Stopped: a value is no number.
    """
    # It computes in float32 whatever is configured, so no dtype would help.
    mend = "the weights of the checkpoint's image tokenizer are the cause"
    return as_grey_levels((decoded.float() + 1) / 2, mend).to(torch.uint8)


@torch.no_grad()
def normalise_codebook(codebook: torch.nn.Embedding) -> None:
    """Rows of length 1, in place: what is nearest to a latent is then what is nearest to its
    direction, the original rule. transformers normalises in decoding alone, which this does not
    change."""
    weight = codebook.weight
    weight.copy_(torch.nn.functional.normalize(weight.double(), dim=-1))


def _picture(image: Image.Image | np.ndarray) -> Image.Image:
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    return picture.convert("RGB")


def _batches(images: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [images[start : start + size] for start in range(0, len(images), size)]
