"""How the regions of an image are counted, for MMMG's readability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from atelier.config.sections.base import Section, operational


class RegionsConfig(Section):
    """Who counts the regions of an image."""

    counter: Literal["classical", "sam2"] = Field(
        "classical",
        description="classical: areas of one colour, needs no model; sam2: masks of SAM 2.1, as "
        "published, with the package sam2 and a checkpoint.",
    )
    read_text: bool = Field(
        True,
        description="Count text by lines, read by PP-OCR; false is faster, and letters count "
        "one by one (classical).",
    )
    checkpoint: str | None = Field(
        None, description="File of SAM 2's weights, such as sam2.1_hiera_large.pt (sam2)."
    )
    model: str = Field(
        "configs/sam2.1/sam2.1_hiera_l.yaml",
        min_length=1,
        description="The package's own configuration of the checkpoint's model (sam2).",
    )
    device: Literal["auto", "cpu", "cuda"] = operational("auto", "Where SAM 2 computes.")

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of fields that do not fit each other."""
        if self.counter == "sam2" and self.checkpoint is None:
            yield "checkpoint", "is required with counter: sam2; or use counter: classical"
        if self.counter == "sam2" and not self.read_text:
            yield "read_text", "false is for counter: classical: the published count reads text"
