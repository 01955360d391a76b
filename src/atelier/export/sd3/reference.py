"""The images an exported pipeline must reproduce, from the noise they were made of.

    latents      float32 [N, C, h, w]   the initial noise, as the pipeline's `latents` argument
    images       uint8 [N, H, W, 3]     by the trainer's policy with the trained tensors
    base_images  uint8 [N, H, W, 3]     by the same policy before they were loaded

The prompts and the call's settings are JSON in the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from atelier.config.schema import PolicyConfig, RunConfig
from atelier.data.prompts import Prompt
from atelier.evaluation.requests import evaluation_key
from atelier.export.reference import Differences, image_difference, reading
from atelier.policies.sd3.policy import SD3Policy
from atelier.training.weights import put_weights


@dataclass(frozen=True)
class ImageReference:
    """See the module. `call` holds num_inference_steps, guidance_scale, max_sequence_length."""

    latents: torch.Tensor
    images: np.ndarray
    base_images: np.ndarray
    prompts: list[str]
    call: Mapping[str, float | int]

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {
            "latents": self.latents.float().cpu().contiguous(),
            "images": torch.from_numpy(np.ascontiguousarray(self.images)),
            "base_images": torch.from_numpy(np.ascontiguousarray(self.base_images)),
        }
        header = {"prompts": json.dumps(self.prompts), "call": json.dumps(dict(self.call))}
        save_file(tensors, path, metadata=header)

    @property
    def effect(self) -> Differences:
        """How far training moved the images. Under 1/255 they cannot tell trained from base."""
        return Differences(image_difference(self.images, self.base_images))

    def compare(self, made: Mapping[str, np.ndarray]) -> Differences:
        return Differences(image_difference(made["images"], self.images))


def load_reference(path: Path) -> ImageReference:
    """Read a reference back.

    Raises:
        CheckpointError: no such file, or not a reference.
    """
    with reading(path), safe_open(path, framework="pt") as file:
        header = file.metadata()
        return ImageReference(
            latents=file.get_tensor("latents"),
            images=file.get_tensor("images").numpy(),
            base_images=file.get_tensor("base_images").numpy(),
            prompts=json.loads(header["prompts"]),
            call=json.loads(header["call"]),
        )


def make_reference(
    config: RunConfig, tensors: Mapping[str, Tensor], prompts: Sequence[Prompt], device: str
) -> ImageReference:
    """Images of the trainer's policy for `prompts`, before and after the tensors are loaded.

    Prompts and noise are those of the evaluation. Every part computes in float32 whatever training
    did: the export is compared to 1/255, and what is exported are the weights, not the rounding
    of one training run.
    """
    texts = [prompt.text for prompt in prompts]
    policy = SD3Policy.load(
        _in_float32(config.policy),
        config.rollout,
        config.evaluation,
        config.train.seed,
        device,
        prompts=texts,
    )
    latents = policy.noise([evaluation_key(config.evaluation.seed, one) for one in prompts])[:, 0]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as in the clean process
        before = policy.generate_from(policy.module, texts, latents)
        put_weights(policy.trainable(), tensors)
        after = policy.generate_from(policy.module, texts, latents)
    return ImageReference(
        latents=latents,
        images=after,
        base_images=before,
        prompts=texts,
        call={
            "num_inference_steps": config.evaluation.num_inference_steps,
            "guidance_scale": config.evaluation.guidance_scale,
            "max_sequence_length": config.policy.max_sequence_length,
        },
    )


def _in_float32(policy: PolicyConfig) -> PolicyConfig:
    full = {"dtype": "float32"}
    parts = {"text": policy.text.model_copy(update=full), "vae": policy.vae.model_copy(update=full)}
    return policy.model_copy(update={**full, "base_dtype": "float32", **parts})
