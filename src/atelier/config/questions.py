"""Questions to judges about what a prompt asks for."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

PROMPT = "{prompt}"  # stands in a question where the prompt is put


def _named(question: str) -> str:
    if PROMPT not in question:
        raise ValueError(f"a judge has to be told what was asked for: write {PROMPT} where it is")
    return question


PromptQuestion = Annotated[str, AfterValidator(_named)]
"""Without its prompt every image of a run would be measured by one and the same question."""
