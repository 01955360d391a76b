"""How Qwen-Image's language model conditions its frozen transformer, and how that paints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import PositiveInt, Section, operational
from atelier.config.sections.policy_parts import Dtype

TemplateName = Literal["stock", "planning", "own"]
PresetName = Literal["pipeline", "released", "lightning"]

TEXT_WINDOW = 1024  # tokens that the pipeline of text to image takes at most
ROTARY_POSITIONS = 4096  # that the transformer has, for images and text together


# diffusers rounds to these without a word, and smaller ones to 0.
SeenSide = Annotated[int, Field(ge=32, le=4096, multiple_of=32)]


class ConditioningConfig(Section):
    """What the frozen transformer sees of a prompt and its completion."""

    template: TemplateName = Field(
        "stock",
        description="What stands around a prompt: stock: what the transformer was trained with; "
        "planning: asks for a plan of the picture (text to image); own: rollout.conditioning."
        "system.",
    )
    system: str | None = Field(
        None, description="System sentence of template own, without the marks of a conversation."
    )
    window: Annotated[int, Field(ge=1, le=ROTARY_POSITIONS)] = Field(
        TEXT_WINDOW,
        description="Tokens of prompt, source image and completion that reach the transformer; "
        "what would not fit is refused. At most 1024 for text to image.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Keys below this section that do not go together, and why."""
        if self.template == "own" and not (self.system or "").strip():
            yield "system", "is required with rollout.conditioning.template: own"
        if self.template != "own" and self.system is not None:
            yield "system", f"is for template own, and template is {self.template}"


class EnvironmentConfig(Section):
    """How the frozen pipeline makes an image of hidden states. Steps and guidance are those of
    rollout.num_inference_steps and rollout.guidance_scale, noise that of rollout.shared_start."""

    preset: PresetName = Field(
        "pipeline",
        description="Noise levels: pipeline: as the pipeline's scheduler says; released: as "
        "published for Qwen-Image (50 steps, guidance 4); lightning: as its distilled adapter "
        "wants them (8 steps, guidance 1).",
    )
    adapter: str | None = Field(
        None,
        description="File of a LoRA that is merged into the frozen transformer, such as that of "
        "Qwen-Image-Lightning (safetensors).",
    )
    dtype: Dtype = Field(
        "float32", description="Dtype the frozen transformer is held and computes in."
    )
    gpus: Annotated[int, Field(ge=0, le=256)] = operational(
        0,
        "GPUs that paint and do nothing else, behind those of the trainer, each for as many ranks; "
        "0: each rank's own GPU paints.",
    )
    micro_batch_size: PositiveInt | None = Field(
        None,
        description="Images painted together, sorted by the length of their text; default: "
        "rollout.micro_batch_size. Edits are painted one by one.",
    )
    condition_side: SeenSide = Field(
        384,
        description="Side in pixels of a source image as the language model sees it (multiples of "
        "32).",
    )
    reference_side: SeenSide = Field(
        1024, description="Side in pixels of a source image as the transformer sees it, likewise."
    )
