"""Sizes of DeepGen 1.0: Qwen2.5-VL-3B, the published connector, SD3.5-Medium's transformer.

Counted on the `meta` device from the real classes (benchmarks/deepgen_shape.py,
tests/unit/test_deepgen_plan.py).
"""

from __future__ import annotations

from atelier.config.facts.deepgen import Bridge, DeepGenFacts, deepgen_facts
from atelier.config.facts.known_sd3 import PIPELINES, known_parts
from atelier.config.schema import RunConfig

MODELS = ("deepgenteam/DeepGen-1.0-diffusers",)
VLM_PARAMETERS = 3_754_622_976  # text head and embedding are one
TRANSFORMER = "stabilityai/stable-diffusion-3.5-medium"  # of the same shape
_STORED_BYTES = 2


def known_deepgen(config: RunConfig) -> DeepGenFacts:
    """Sizes of it, for the images a configuration asks for.

    Raises ConfigError naming policy.resolution where the model has no place for such images, or
    policy.lora.target_modules where it has no such module.
    """
    model = PIPELINES[TRANSFORMER]
    return deepgen_facts(
        config,
        VLM_PARAMETERS,
        _STORED_BYTES * VLM_PARAMETERS,
        Bridge(),
        frozen_bytes=model.stored_bytes * model.vae_parameters,
        **known_parts(model, config, config.policy.resolution),
    )
