"""Questions to judges about what a prompt asks for, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

PROMPT = "{prompt}"  # stands in a question where the prompt is put


@dataclass(frozen=True)
class Asked:
    """What a judge is asked about one image, at one measurement.

    Attributes:
        questions: how many.
        pictures: that a question shows, on average.
        in_words: whether the judge has to say something; false where yes or no is enough.
        is_exact: whether `questions` are counted; false where it depends on each prompt.
    """

    questions: float = 1
    pictures: float = 1
    in_words: bool = True
    is_exact: bool = True


def _named(question: str) -> str:
    if PROMPT not in question:
        raise ValueError(f"a judge has to be told what was asked for: write {PROMPT} where it is")
    return question


PromptQuestion = Annotated[str, AfterValidator(_named)]
"""Without its prompt every image of a run would be measured by one and the same question."""
