"""From easy prompts to hard ones, by what an earlier evaluation measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from atelier.config.sections.base import Section


class CurriculumConfig(Section):
    """Training prompts in cells, ranked by a measured score and met from easy to hard. Prompts of
    a level are those of its own cells and of all easier ones."""

    scores: str | None = Field(
        None,
        description="File of an earlier evaluation that says how easy each cell is: mmmg.json, or "
        "scores.jsonl; default: no curriculum.",
    )
    score: str | None = Field(
        None,
        description="Which score of that file, the higher the easier; default: judge_mmmg or "
        "gold_mmmg, whichever it has.",
    )
    cells: Annotated[list[str], Field(min_length=1)] = Field(
        ["tier", "discipline"],
        description="Keys of a prompt's metadata whose values make its cell.",
    )
    levels: Annotated[int, Field(ge=2, le=1000)] = Field(
        5, description="Levels that the cells are split into, equally long in steps."
    )

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """Keys below this section that do not go together, and why."""
        if len({*self.cells}) < len(self.cells):
            yield "cells", "names a key twice"
