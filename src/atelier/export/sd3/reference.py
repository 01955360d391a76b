"""The images an exported pipeline must reproduce, from the noise they were made of.

    latents      float32 [N, C, h, w]   the initial noise, as the pipeline's `latents` argument
    images       uint8 [N, H, W, 3]     by the trainer's policy with the trained tensors
    base_images  uint8 [N, H, W, 3]     by the same policy before they were loaded

The prompts and the call's settings are JSON in the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.data.prompts import Prompt
from atelier.evaluation.requests import evaluation_key
from atelier.export.reference import Reference
from atelier.policies.sd3.policy import SD3Policy
from atelier.policies.sd3.transformer_policy import TransformerPolicy
from atelier.training.weights import put_weights


@dataclass(frozen=True)
class ImageReference(Reference):
    """See the module. `call` holds num_inference_steps, guidance_scale, max_sequence_length."""

    latents: np.ndarray


def make_reference(
    config: RunConfig, tensors: Mapping[str, Tensor], prompts: Sequence[Prompt], device: str
) -> ImageReference:
    """Images of the trainer's policy for `prompts`, before and after the tensors are loaded.

    Prompts and noise are those of the evaluation. Every part computes in float32 whatever training
    did: the export is compared to 1/255, and what is exported are the weights, not the rounding
    of one training run.
    """
    exact = config.model_copy(update={"policy": in_float32(config.policy)})
    policy = SD3Policy.load(exact, device, prompts=[prompt.text for prompt in prompts])
    call = {"max_sequence_length": config.policy.max_sequence_length}
    return images_of(policy, config, tensors, prompts, call)


def images_of(
    policy: TransformerPolicy,
    config: RunConfig,
    tensors: Mapping[str, Tensor],
    prompts: Sequence[Prompt],
    call: Mapping[str, float | int],
) -> ImageReference:
    """What a policy makes of the evaluation's prompts and noise, before and after the tensors are
    loaded.

    Args:
        call: what else a pipeline's call is told.
    """
    latents = policy.noise([evaluation_key(config.evaluation.seed, one) for one in prompts])[:, 0]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # as in the clean process
        before = policy.generate_from(policy.module, prompts, latents)
        put_weights(policy.trainable(), tensors)
        after = policy.generate_from(policy.module, prompts, latents)
    return ImageReference(
        latents=latents.float().cpu().numpy(),
        images=after,
        base_images=before,
        prompts=[prompt.text for prompt in prompts],
        call={
            "num_inference_steps": config.evaluation.num_inference_steps,
            "guidance_scale": config.evaluation.guidance_scale,
            **call,
        },
    )


def in_float32(policy: PolicyConfig) -> PolicyConfig:
    """The same with every part in float32, computed as the libraries do."""
    full = {"dtype": "float32"}
    parts = {"text": policy.text.model_copy(update=full), "vae": policy.vae.model_copy(update=full)}
    own = {"base_dtype": "float32", "transformer": "stock"}
    return policy.model_copy(update={**full, **own, **parts})
