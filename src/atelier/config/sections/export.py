"""What is written of a trained model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from atelier.config.sections.base import Fraction, PositiveInt, Section


class ExportConfig(Section):
    """What is written at the end and proven by reloading."""

    weights: Literal["ema", "raw"] = Field("ema", description="Averaged or last weights.")
    formats: list[Literal["adapter", "merged"]] = Field(
        default=["merged"],
        description="adapter: the LoRA alone, for the base; merged: a whole model directory (qwen: "
        "the text encoder's).",
    )
    whole_pipeline: bool = Field(
        False,
        description="Whether merged has the frozen transformer and autoencoder, too (qwen: 41 GB "
        "of 20 billion parameters that nobody trained).",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Dtype of the merged weights; 16 bit is rounded once."
    )
    min_update_survival: Fraction = Field(
        0.9, description="Share of the update that must survive rounding to 16 bit."
    )
    verify_prompts: PositiveInt = Field(4, description="Images compared in a clean process.")
