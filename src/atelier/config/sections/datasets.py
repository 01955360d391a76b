"""The data sets of a mixture that stands in the configuration itself (data.source: mixture)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atelier.config.prompt_files import WITHOUT_TARGET
from atelier.config.reward_names import ours
from atelier.config.sections.base import PositiveInt, Section

DatasetName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
# Formats whose prompts ask for an image each: no pairs, edits or graphs.
HeldoutSource = Literal["ocr_text", "plain", "geneval", "unigenbench"]
DatasetSource = Literal["scenes", HeldoutSource]
SamplingMode = Literal["sample_proportional", "weight_only"]
MixWeight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
TARGET_REWARDS = ("ocr", "vlm_ocr")  # that look for a text, of which the prompts must say which


class DatasetConfig(Section):
    """Prompts of one kind: where they come from, how often they are drawn, what rewards them."""

    source: DatasetSource = Field(
        "scenes", description="The embedded scene world, or the format of the prompt file."
    )
    path: str | None = Field(None, description="As data.path; required unless source is scenes.")
    heldout_path: str | None = Field(None, description="As data.heldout_path.")
    heldout_source: HeldoutSource | None = Field(None, description="As data.heldout_source.")
    malformed_rows: Literal["refuse", "leave_out"] | None = Field(
        None, description="As data.malformed_rows; default: data.malformed_rows."
    )
    scene_kind: Literal["word", "shapes", "mixed"] = Field(
        "word", description="As data.scene_kind."
    )
    scene_wording: Literal["plain", "riddle"] = Field("plain", description="As data.scene_wording.")
    train_prompts: PositiveInt | None = Field(
        None, description="Training prompts to keep or generate; default: data.train_prompts."
    )
    heldout_prompts: PositiveInt | None = Field(
        None, description="Held-out prompts to keep or generate; default: data.heldout_prompts."
    )
    sample_weight: Annotated[float, Field(ge=1e-6, le=1e6, allow_inf_nan=False)] = Field(
        1.0, description="How often its prompts are drawn, relative to others: data.sampling_mode."
    )
    rewards: dict[str, MixWeight] = Field(
        default={},
        description="Name and weight of the rewards of its images; others are not asked about "
        "them. Each is to be set in `rewards`. Default: all rewards, with their own weights.",
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of fields that do not fit each other."""
        if self.source != "scenes" and self.path is None:
            yield "path", f"is required when source is {self.source}"
        if self.source == "scenes":
            for key in ("path", "heldout_path"):
                if getattr(self, key) is not None:
                    yield key, "is for prompt files, and source is scenes"
        if self.heldout_source is not None and self.heldout_path is None:
            yield "heldout_source", "is the format of heldout_path, which is not set"
        if self.rewards and not any(self.rewards.values()):
            yield "rewards", "all weights are 0, so nothing would reward its images"
        if (lacks := self.without_target()) is None:
            return
        for name, weight in self.rewards.items():
            if weight and ours(name) in TARGET_REWARDS:
                yield f"rewards.{name}", f"needs a text to look for, and {lacks} has none"

    def without_target(self) -> str | None:
        """What says that its prompts have no text to look for; None where they may have one."""
        if lacks_target(self.source, self.path):
            return f"source {self.source}"
        is_shapes = self.source == "scenes" and self.scene_kind == "shapes"
        return "scene_kind shapes" if is_shapes else None

    def heldout_without_target(self) -> bool:
        """Whether the prompts that it holds out surely have no text to look for."""
        if self.heldout_source is not None:
            return lacks_target(self.heldout_source, self.heldout_path)
        return self.without_target() is not None


def lacks_target(source: str, path: str | None) -> bool:
    """Whether prompts of a format surely have no text to look for. JSON lines of plain prompts may:
    their other keys are metadata."""
    return source in WITHOUT_TARGET and not (source == "plain" and (path or "").endswith(".jsonl"))
