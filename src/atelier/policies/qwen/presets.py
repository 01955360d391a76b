"""Noise levels that Qwen-Image is sampled at. Source: the Qwen vision GRPO guide."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler

from atelier.config.sections.qwen import PresetName

_SHIFTING = {
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": True,  # without it the pipeline's shift is ignored, and nothing is said
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "time_shift_type": "exponential",
}


@dataclass(frozen=True)
class Preset:
    """What the scheduler is configured with, and the published steps and guidance beside it."""

    num_inference_steps: int
    guidance_scale: float
    scheduler: dict[str, Any] = field(default_factory=dict)


PRESETS = {
    "released": Preset(
        50, 4.0, {**_SHIFTING, "base_shift": 0.5, "max_shift": 0.9, "shift_terminal": 0.02}
    ),
    "lightning": Preset(
        8,
        1.0,
        {
            **_SHIFTING,
            "base_shift": math.log(3),
            "max_shift": math.log(3),
            "shift_terminal": None,
        },
    ),
}


def scheduler_of(preset: PresetName, own: Any) -> FlowMatchEulerDiscreteScheduler:
    """A pipeline's `own` scheduler, or one with a preset's values."""
    values = {} if preset == "pipeline" else PRESETS[preset].scheduler
    return FlowMatchEulerDiscreteScheduler.from_config({**own.config, **values})
