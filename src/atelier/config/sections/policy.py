"""The model, and what of it is trained."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from atelier.config.sections.base import PositiveInt, Section
from atelier.config.sections.deepgen import BasesConfig, ConnectorConfig
from atelier.config.sections.policy_parts import Dtype, TextConfig, VaeConfig

_OF_SD3 = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)
LORA_TARGETS = {
    "sd3": _OF_SD3,
    "deepgen": _OF_SD3,  # it has the same transformer
    "janus": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "qwen": ("q_proj", "k_proj", "v_proj", "o_proj"),
}


class LoraConfig(Section):
    """Low-rank adapter (peft) on the transformer or language model, Gaussian A and zero B, without
    dropout.

    The defaults are those published for SD3.5-Medium: 18.8 M trained parameters.
    """

    rank: PositiveInt = Field(32, description="Rank of the adapter.")
    alpha: PositiveInt = Field(64, description="Scale numerator: the update is alpha/rank * BA.")
    target_modules: list[str] = Field(
        default=[*LORA_TARGETS["sd3"]],
        description="Module name suffixes that get an adapter. Of janus, the seven linear layers "
        "of a block of the language model where none are named; of qwen, the four of its "
        "attention.",
    )
    folded: bool = Field(
        False,
        description="Whether a fast transformer adds the adapter to a copy of its weights in every "
        "pass, rounded to policy.dtype, instead of multiplying by it: faster. In float16 rounding "
        "is 18 % of what an adapter with entries of 1e-4 adds to a layer, 2 % of one with 1e-3; "
        "bfloat16 has an eighth of the digits and is refused.",
    )


class PolicyConfig(Section):
    """The model that is trained."""

    family: Literal["sd3", "deepgen", "janus", "qwen"] = Field(
        "sd3",
        description="Policy family. deepgen: the transformer of SD3 is trained on what a frozen "
        "Qwen2.5-VL reads. qwen: Qwen-Image, whose text encoder is trained to write what its "
        "frozen transformer paints.",
    )
    path: str = Field(
        "assets/tiny-sd3",
        description="Pipeline or model directory, or hub id, to start from; also a file of weights "
        "as the original code saves them (.pth, .safetensors): of janus with policy.layout, of "
        "deepgen with policy.bases.",
    )
    layout: str | None = Field(
        None,
        description="Model directory or hub id that a .pth file's configuration and tokenizer "
        "come from.",
    )
    revision: str | None = Field(
        None, description="Commit, tag or branch of a hub id; a commit is what never changes."
    )
    trainable: Literal["full", "lora", "dit", "dit_connector"] = Field(
        "full",
        description="What is trained: everything that the family trains, or an adapter on it. Of "
        "deepgen full is dit, the transformer; dit_connector is the transformer with the "
        "connector.",
    )
    lora: LoraConfig = LoraConfig()
    text: TextConfig = TextConfig()
    vae: VaeConfig = VaeConfig()
    connector: ConnectorConfig = ConnectorConfig()
    bases: BasesConfig = BasesConfig()
    resolution: PositiveInt | None = Field(
        None, description="Side of the images in pixels; default: what the model was made for."
    )
    max_sequence_length: PositiveInt = Field(
        256, description="Tokens of the third (T5) text encoder; the pipeline's default is 256."
    )
    dtype: Dtype = Field(
        "float32",
        description="Autocast dtype of what is trained; latents are always float32.",
    )
    base_dtype: Dtype = Field(
        "float32",
        description="Dtype the frozen model under a LoRA is held in: float32, or dtype. What is "
        "trained is always held in float32.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations in backward.")
    transformer: Literal["stock", "fast"] = Field(
        "stock",
        description="Who computes the transformer's blocks: diffusers; or the same arithmetic in "
        "fewer and larger kernels (sd3, deepgen; not with zero_stage 3). Weights, files and "
        "adapters are the same.",
    )
    compile: bool | None = Field(
        None,
        description="Whether Inductor compiles a fast transformer's blocks and the decoder of its "
        "autoencoder, when a shape first comes up; default: on GPUs. A CPU compiles for minutes. "
        "On GPUs, what is compiled of sd3 is also recorded: passes without gradients are CUDA "
        "graphs.",
    )

    @property
    def denoises(self) -> bool:
        """Whether its actions are steps of a transformer of latents, and no tokens."""
        return self.family in ("sd3", "deepgen")

    @model_validator(mode="before")
    @classmethod
    def _usual_part(cls, values: Any) -> Any:
        """Of deepgen, full is what is trained as published: the transformer."""
        is_deepgen = isinstance(values, dict) and values.get("family") == "deepgen"
        if is_deepgen and values.get("trainable", "full") == "full":
            return {**values, "trainable": "dit"}
        return values

    @model_validator(mode="before")
    @classmethod
    def _usual_targets(cls, values: Any) -> Any:
        """Where none are named, those of the family."""
        if not isinstance(values, dict) or values.get("family", "sd3") == "sd3":
            return values
        lora, targets = values.get("lora", {}), LORA_TARGETS.get(values["family"])
        if targets is None or not isinstance(lora, dict) or "target_modules" in lora:
            return values
        return {**values, "lora": {**lora, "target_modules": list(targets)}}
