"""What an export is compared with does not depend on the dtypes that training computed in."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from atelier.config.resolve import resolve
from atelier.data.prompts import Prompt
from atelier.export.sd3.reference import make_reference
from atelier.policies.sd3.policy import SD3Policy
from tests.support.runs import SETTINGS, untrained_pipeline

LORA = ("policy.trainable=lora", "policy.lora.rank=4", "policy.lora.alpha=8")
HALF = [f"policy.{name}=bfloat16" for name in ("dtype", "base_dtype", "vae.dtype", "text.dtype")]


def test_the_reference_is_computed_in_float32() -> None:
    images = []
    for own in (HALF, []):
        settings = [
            *SETTINGS,
            *LORA,
            *own,
            "policy.resolution=32",
            f"policy.path={untrained_pipeline()}",
        ]
        config = resolve("tiny/base", settings, Path(os.devnull))
        policy = SD3Policy.load(config, "cpu")
        tensors = {name: torch.full_like(one, 0.05) for name, one in policy.trainable().items()}
        reference = make_reference(config, tensors, [Prompt(0, 0, "a", {})], "cpu")
        assert reference.images.shape == (1, 32, 32, 3)
        assert reference.effect.images.max > 0
        images.append(reference.images)
    assert np.array_equal(*images)
