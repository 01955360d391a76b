"""A CLIP model in this process: cosine and logit of images and texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, CLIPModel

from atelier.errors import ConfigError
from atelier.given_up import while_wanted
from atelier.model_files import require_numbers, telling

IMAGES_AT_ONCE = 32


class ClipModel:
    """A CLIP model and its processor.

    Args:
        path: directory or hub id of the model.
        processor: the same of tokenizer and image processor.
        revision: of the model's hub id, and of the processor's where it is the same.
        device: cpu, cuda or auto: a GPU where there is one.
        key: where the model stands in the configuration, for messages.

    Raises:
        ConfigError: it cannot be loaded, or there is no GPU.
    """

    def __init__(
        self, path: str, processor: str, revision: str | None, device: str, key: str
    ) -> None:
        with telling(f"{key}.path: {path} cannot be loaded as a CLIP model"):
            model: Any = CLIPModel.from_pretrained(path, revision=revision, dtype=torch.float32)
            self._processor: Any = AutoProcessor.from_pretrained(
                processor, revision=revision if processor == path else None
            )
        require_numbers(f"{key}.path: {path}", model.state_dict())
        self._model = model.to(_device(device, key)).eval()
        self._longest = model.config.text_config.max_position_embeddings  # 77 of all published ones

    def compare(
        self, images: Sequence[Image.Image], texts: Sequence[str]
    ) -> list[tuple[float, float]]:
        """Cosine in [-1, 1] and logit of each image and its text, cut at 77 tokens."""
        found: list[tuple[float, float]] = []
        for start in while_wanted(range(0, len(images), IMAGES_AT_ONCE)):
            part = slice(start, start + IMAGES_AT_ONCE)
            found += self._compare(images[part], texts[part])
        return found

    @torch.inference_mode()
    def _compare(
        self, images: Sequence[Image.Image], texts: Sequence[str]
    ) -> list[tuple[float, float]]:
        inputs = self._processor(
            images=[image.convert("RGB") for image in images],
            text=list(texts),
            return_tensors="pt",
            padding="max_length",  # or a score would depend on the other prompts' lengths
            truncation=True,
            max_length=self._longest,
        ).to(self._model.device)
        found = self._model(**inputs)
        cosine = (_unit(found.image_embeds) * _unit(found.text_embeds)).sum(dim=-1).float()
        logit = cosine * self._model.logit_scale.exp().float()
        return list(zip(cosine.tolist(), logit.tolist(), strict=True))


def _device(name: str, key: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{key}.device: cuda, and this process sees no GPU; use cpu")
    return torch.device(name)


def _unit(embedding: Tensor) -> Tensor:
    return embedding / embedding.norm(dim=-1, keepdim=True)
