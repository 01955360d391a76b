"""Settings of DeepGen alone: its connector, and the models that a checkpoint was trained from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import PositiveInt, Section


class ConnectorConfig(Section):
    """What translates from the language model to the transformer (deepgen)."""

    padding: Literal["masked", "maskless"] = Field(
        "masked",
        description="masked: a prompt is encoded by itself. maskless: with its batch, whose "
        "padding is as good as words, as the published code does: it then depends on the longest "
        "prompt beside it, of which a micro-batch of one group has none.",
    )
    heads: PositiveInt = Field(
        32,
        description="Attention heads, where a file of weights does not say (of a directory, "
        "connector/config.json does).",
    )


class BasesConfig(Section):
    """What a file of weights (policy.path: *.pth, *.safetensors) was trained from (deepgen)."""

    vlm: str | None = Field(
        None, description="Directory or hub id of Qwen2.5-VL-3B-Instruct; required."
    )
    pipeline: str | None = Field(
        None,
        description="Directory or hub id of UniPic2-SD3.5M-Kontext-2B, for its autoencoder, "
        "scheduler and the transformer's shape; required.",
    )
    sft: str | None = Field(
        None,
        description="File of weights that lies beneath: what policy.path lacks is taken from it, "
        "such as the language model's adapter, which a checkpoint of RL has not.",
    )
    adapter_alpha: Annotated[float, Field(gt=0, le=1e6)] = Field(
        128.0, description="Scale numerator of that adapter, which files of weights do not say."
    )
