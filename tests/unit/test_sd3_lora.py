"""The adapter's defaults are those published for SD3.5-Medium."""

from __future__ import annotations

import torch

from atelier.config.sections.policy import LoraConfig
from atelier.policies.sd3.lora import add_adapter, peft_config
from benchmarks.sd3_shape import Shape, build_transformer


def test_the_defaults_are_the_published_adapter_of_sd35_medium() -> None:
    """Rank 32 on the eight projections of every joint attention: 18.78 M."""
    with torch.device("meta"):
        transformer = build_transformer(Shape())
        assert sum(one.numel() for one in transformer.parameters()) == 2_243_171_520
        transformer.requires_grad_(False)
        add_adapter(transformer, LoraConfig(), seed=None)
    trained = [one for one in transformer.parameters() if one.requires_grad]
    assert sum(one.numel() for one in trained) == 18_776_064
    assert len(trained) == 2 * (24 * 8 - 1), "the last block has no text output"


def test_settings_of_peft() -> None:
    found = peft_config(LoraConfig())
    assert (found.r, found.lora_alpha, found.lora_dropout) == (32, 64, 0.0)
    assert found.init_lora_weights == "gaussian"
