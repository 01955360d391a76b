"""What a user has to know to write and to paint as the trainer does. Plain values, for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atelier.config.schema import RunConfig
from atelier.policies.qwen.parts import Parts
from atelier.policies.qwen.presets import PRESETS


def call_of(config: RunConfig, parts: Parts) -> dict[str, float | int]:
    """Arguments of the pipeline: those of the evaluation."""
    side = parts.environment.side
    return {
        "height": side,
        "width": side,
        "num_inference_steps": config.evaluation.num_inference_steps,
        "true_cfg_scale": config.evaluation.guidance_scale,
    }


def settings_of(config: RunConfig, parts: Parts) -> Mapping[str, Any]:
    """What there is beside them.

    Returns:
        before, picture, after: what stands around a prompt; `before` is not painted from.
        writing: arguments of the encoder's `generate`.
        dtypes: of the frozen parts.
        scheduler: its values that are not the pipeline's.
        adapter: file of a LoRA that is merged into the frozen transformer, or null.
        seen: pixels of a source image, as the encoder and as the transformer sees it.
        vae: how it decodes.
    """
    environment, completion = config.rollout.environment, config.rollout.completion
    template, preset = parts.chat.template, environment.preset
    return {
        "before": template.before,
        "picture": template.picture,
        "after": template.after,
        "writing": {
            "max_new_tokens": completion.max_tokens,
            "temperature": completion.temperature,
            "top_k": completion.top_k,
            "top_p": completion.top_p,
        },
        "dtypes": {"transformer": environment.dtype, "vae": config.policy.vae.dtype},
        "scheduler": {} if preset == "pipeline" else PRESETS[preset].scheduler,
        "adapter": environment.adapter,
        "seen": {
            "encoder": environment.condition_side**2,
            "transformer": environment.reference_side**2,
        },
        "vae": {
            "use_slicing": config.policy.vae.slicing,
            "use_tiling": config.policy.vae.tiling,
        },
    }
