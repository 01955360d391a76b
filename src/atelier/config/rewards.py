"""The sections of `rewards:`, and how the text in an image is read.

A reward's section says what is scored (which shapes training) and, by `RewardSection`, where: in
the trainer, in a service that the run starts and watches, or in one that others run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections import (
    Fraction,
    PositiveFloat,
    Section,
    operational,
)
from atelier.config.servers import Few, Placed, Placement

# Sums are kept as float32, and more than this against a weight of 1 leaves nothing of the other.
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
    min_valid_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Share of a step's images that must have a score, else the run stops."
    )
    deadline: PositiveFloat = operational(
        600.0, "Seconds a step waits for its scores before they count as missing."
    )

    def sections(self) -> dict[str, RewardSection]:
        """Name and section of every reward that is set, in the order of the schema."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: one for name, one in values.items() if isinstance(one, RewardSection)}

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key and problem of every field that does not fit the others."""
        for name, section in self.sections().items():
            for key, problem in section.conflicts():
                yield f"rewards.{name}.{key}", problem
