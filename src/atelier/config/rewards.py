"""The sections of `rewards:`, and how the text in an image is read.

A reward's section says what is scored (which shapes training) and, by `RewardSection`, where: in
the trainer, in a service that the run starts and watches, or in one that others run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from atelier.config.sections import (
    Fraction,
    PositiveFloat,
    Section,
    operational,
)
from atelier.config.servers import Few, Placed, Placement

# Sums are kept as float32, and more than this against a weight of 1 leaves nothing of the other.
RewardName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class RewardSection(Placed):
    """What every reward has in common: its weight, and where its scores are made."""

    weight: Weight = Field(
        1.0, description="Weight in the sum, at most 1e6 either way; 0 only logs."
    )
    placement: Placement = operational(
        "in_process",
        "in_process: in the trainer; managed: in services the run starts, watches and stops; "
        "remote: in services at `urls`.",
    )
    workers: Few = operational(1, "Scoring threads of a trainer process, or of a service.")
    timeout: PositiveFloat = operational(
        120.0, "Seconds a service may take for one batch before it is asked again."
    )


class JudgedSection(RewardSection):
    """A reward that a judge is asked for."""

    yes_or_no: ClassVar[bool] = False  # whether a judge that only answers so is enough

    judge: str = Field(min_length=1, description="Which of `judges` is asked.")


class CustomRewardConfig(RewardSection):
    """A reward of your own, or one whose packages need an environment of their own."""

    function: str = Field(
        description="`module:name` of a function or a class; see docs/extending.md.",
    )
    parameters: dict[str, JsonValue] = Field(
        default={}, description="Given to it as keyword arguments."
    )


class YesNoConfig(JudgedSection):
    """P(yes) of a judge to one question or several (spec janus 6)."""

    yes_or_no: ClassVar[bool] = True

    questions: dict[str, str] = Field(
        default={"shows": "Does this image show {prompt}? Answer yes or no."},
        min_length=1,
        description="Name and text; {prompt} is the image's. With several, the mean counts.",
    )
    show_source: bool = Field(
        False, description="The edited (source) image is shown first, as image 1."
    )


class OcrConfig(Section):
    """Text in the image, read by PP-OCR through rapidocr (spec flow 5)."""

    detect: bool = Field(True, description="Find text boxes first; false reads the whole image.")
    min_confidence: Fraction = Field(0.0, description="Recognised lines below are ignored.")
    box_order: Literal["detected", "reading"] = Field(
        "detected", description="Order of the lines joined: as detected, or top-left first."
    )
    unicode_normalization: Literal["none", "NFKC"] = Field(
        "none", description="Normalisation of both texts before they are compared."
    )
    workers: Few = operational(1, "Scoring threads of a trainer process, or of a service.")


class OcrRewardConfig(RewardSection, OcrConfig):
    """Similarity of the text in the image, read by PP-OCR, to the target (spec flow 5)."""


class JpegConfig(RewardSection):
    """Size of the image as JPEG, labelled by direction (spec flow 5)."""

    quality: Annotated[int, Field(ge=1, le=100)] = Field(95, description="JPEG quality.")


class RewardsConfig(Section):
    """Rewards that are set are used; their weighted sum is what is trained on."""

    ocr: OcrRewardConfig | None = Field(
        None, description="Similarity of the text read to the target."
    )
    jpeg_compressibility: JpegConfig | None = Field(
        None, description="-kB/500: higher is more compressible."
    )
    jpeg_incompressibility: JpegConfig | None = Field(
        None, description="kB: higher is less compressible."
    )
    yes_no: YesNoConfig | None = Field(None, description="P(yes) of a judge.")
    custom: dict[RewardName, CustomRewardConfig] = Field(
        default={}, description="Rewards of your own, by names of yours."
    )
    min_valid_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Share of a step's images that must have a score, else the run stops."
    )
    min_valid_in_group: Fraction = Field(
        0.5,
        description="Share of a group's images that must have a score, and never fewer than 2, "
        "else no image of the group has an advantage.",
    )
    deadline: PositiveFloat = operational(
        600.0, "Seconds a step waits for its scores before they count as missing."
    )
    replay: Annotated[int, Field(ge=0, le=1000)] = operational(
        1,
        "How often scores that are still missing at the deadline, and may be had later, are asked "
        "for again; each time a step waits for another deadline.",
    )

    def sections(self) -> dict[str, RewardSection]:
        """Name and section of every reward that is set, in the order of the schema."""
        return {path.rpartition(".")[2]: one for path, one in self.by_path().items()}

    def by_path(self) -> dict[str, RewardSection]:
        """As `sections`, by the dotted key."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        own = {f"rewards.custom.{name}": one for name, one in self.custom.items()}
        return {
            f"rewards.{name}": one for name, one in values.items() if isinstance(one, RewardSection)
        } | own

    def only(self, name: str) -> RewardsConfig:
        """This configuration with one reward of it."""
        own = {key: None for key, one in self if isinstance(one, RewardSection) and key != name}
        custom = {key: one for key, one in self.custom.items() if key == name}
        return self.model_copy(update={**own, "custom": custom})

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key and problem of every field that does not fit the others."""
        for name in self.custom.keys() & type(self).model_fields.keys():
            yield (
                f"rewards.custom.{name}",
                f"there is a reward of that name already: rewards.{name}",
            )
        for path, section in self.by_path().items():
            for key, problem in section.conflicts():
                yield f"{path}.{key}", problem
