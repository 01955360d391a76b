"""How an edited image is marked by Complex-Edit, and on what terms its data may be used."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from atelier.config.sections.base import Section
from atelier.config.sections.questions import Asked, PromptQuestion

Licence = Literal["cc-by-nc-4.0"]
LICENCE: Licence = "cc-by-nc-4.0"  # of the published data


class ComplexEditMeasure(Section):
    """What reward and suite `complex_edit` have in common."""

    alignment_question: PromptQuestion | None = Field(
        None,
        min_length=1,
        description="Asked about source and edited image, for instruction following (IF) and "
        "identity preservation (IP); {prompt} is the instruction. Default: Atelier's rubric.",
    )
    quality_question: str | None = Field(
        None,
        min_length=1,
        description="Asked about the edited image alone, for perceptual quality (PQ). Default: "
        "Atelier's rubric, which does not name the instruction.",
    )

    @property
    def asked(self) -> Asked:
        """About one edited image: once beside its source, once alone."""
        return Asked(questions=2, pictures=1.5)
