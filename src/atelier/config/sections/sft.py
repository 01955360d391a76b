"""Captioned pictures that are learned from beside the rewards: which they are (data.sft), and how
(train.sft). Source: DeepGen-RL.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import Factor, Fraction, PositiveInt, Section

# A name of the user's: part of keys.
PicturesName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
LIGHTEST, HEAVIEST = 1e-6, 1e6  # weights of a file: of other ones, products would be no numbers


class PictureFile(Section):
    """A file of captioned pictures."""

    path: str = Field(
        min_length=1,
        description="JSON lines {caption, image}, an image being a file named from the lines' "
        "folder; or Parquet with the columns caption and image, whose pictures are inside; or "
        "MMEngine's Python, which is not run, or YAML, of files {image_path, txt}.",
    )
    data_root: str | None = Field(
        None,
        min_length=1,
        description="Folder that DATA_ROOT stands for in a path of MMEngine's Python or YAML.",
    )
    weight: Annotated[float, Field(ge=LIGHTEST, le=HEAVIEST)] = Field(
        1.0, description="How often its pictures are drawn, as data.sft.sampling_mode has it."
    )

    @property
    def lists_files(self) -> bool:
        """Whether it names other files, and holds no picture itself."""
        return Path(self.path).suffix in (".py", ".yaml", ".yml")


class PicturesConfig(Section):
    """Captioned pictures, for train.sft."""

    source: Literal["scenes", "files"] | None = Field(
        None,
        description="scenes: renderings of training scenes of data.scene_kind; files: "
        "data.sft.files; default: none.",
    )
    scenes: PositiveInt = Field(2048, description="Scenes that are rendered (source: scenes).")
    files: dict[PicturesName, PictureFile] = Field(
        default={}, description="Files by names of yours (source: files)."
    )
    sampling_mode: Literal["sample_proportional", "weight_only"] = Field(
        "sample_proportional",
        description="What a file's weight says: how often each of its pictures is drawn; or all "
        "of them together, however many there are (weight_only).",
    )

    @property
    def named_files(self) -> dict[str, PictureFile]:
        """The files, in an order that does not depend on how they were written down."""
        return dict(sorted(self.files.items()))

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, below this section, and problem of what cannot be."""
        if self.source == "files" and not self.files:
            yield "files", "is required with data.sft.source: files"
        if self.source != "files" and self.files:
            yield "files", "is read with data.sft.source: files"
        for name, file in self.files.items():
            if file.data_root is not None and not file.lists_files:
                yield f"files.{name}.data_root", "belongs to a file that lists others, .py or .yaml"


class SftConfig(Section):
    """A supervised loss on captioned pictures (data.sft) beside that of the rewards: flow matching
    at a level drawn for each, in every update of a step that has it."""

    coefficient: Factor = Field(0.0, description="Its weight c; 0: none. Published: 1e-4.")
    mix: Literal["convex", "additive"] = Field(
        "convex",
        description="convex: (1 - c) x the loss of the rewards + c x this; additive: the first "
        "with weight 1.",
    )
    every: PositiveInt = Field(1, description="Steps from one that has it to the next.")
    pictures_per_update: PositiveInt = Field(
        16, description="Pictures of an update, on all processes together."
    )
    caption_dropout: Fraction = Field(
        0.1, description="Share of the pictures that are shown without their caption."
    )

    @property
    def enabled(self) -> bool:
        return self.coefficient > 0

    def has(self, step: int) -> bool:
        """Whether a training step, counted from 1, has it."""
        return self.enabled and step % self.every == 0

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, below this section, and problem of what cannot be."""
        if self.mix == "convex" and self.coefficient > 1:
            yield (
                "coefficient",
                f"{self.coefficient:g} is more than 1 and leaves nothing of the rewards; lower it, "
                "or use train.sft.mix: additive",
            )
