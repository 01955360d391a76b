"""How a picture is measured by MMMG: what a judge's reply says, and how regions are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import Section
from atelier.config.sections.questions import Asked
from atelier.config.sections.regions import RegionsConfig

_PARTS = 10  # elements and dependencies of a graph, about as many


class MmmgMeasure(Section):
    """What reward and suite `mmmg` have in common."""

    ask: Literal["together", "each"] = Field(
        "together",
        description="together: one question for all elements and dependencies, whose reply is read "
        "line by line; each: one for each of them, yes where P(yes) is above one half, which a "
        "judge that writes nothing can answer, too.",
    )
    parser: Literal["strict", "published"] = Field(
        "strict",
        description="How a judge's reply is read. strict: what it does not say has no verdict; "
        "published: it is a no, as on the leaderboard.",
    )
    min_judged_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9,
        description="Share of the elements and dependencies that need a verdict, else the image "
        "has no score; the rest counts neither for nor against it (parser: strict).",
    )
    regions: RegionsConfig = Field(
        RegionsConfig(), description="How regions are counted, for readability."
    )

    @property
    def asked(self) -> Asked:
        """About one picture."""
        if self.ask == "together":
            return Asked()
        return Asked(_PARTS, in_words=False, is_exact=False)

    def region_conflicts(self) -> Iterator[tuple[str, str]]:
        """Key, relative to the section, and problem of how regions are counted."""
        for key, problem in self.regions.conflicts():
            yield f"regions.{key}", problem
