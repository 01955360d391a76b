"""What each suite of the evaluation asks its judge."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from atelier.config.sections.base import Section
from atelier.config.sections.complex_edit import ComplexEditMeasure
from atelier.config.sections.mmmg import MmmgMeasure
from atelier.config.sections.questions import Asked, PromptQuestion
from atelier.config.sections.rewards import SHOWS, EditQuestions

_TEST_POINTS = 3  # of a prompt, about as many: 1 813 of the 600 short ones that are published


class YesNoSuiteConfig(Section):
    """Suite yes_no: P(yes) of a judge to a question about each image, of prompts of any kind."""

    judge: str | None = Field(
        None, description="Which of `judges` is asked, none that is trained on; required."
    )
    question: PromptQuestion = Field(
        SHOWS,
        min_length=1,
        description="What it is asked, for P(yes); {prompt} is the image's.",
    )

    @property
    def asked(self) -> Asked:
        """About one image."""
        return Asked(in_words=False)


class PairCompConfig(Section):
    """Suite paircomp: pairs of captions that differ in one thing (PairComp, of FocusDiff)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores pairs of scenes.",
    )
    question: PromptQuestion = Field(
        SHOWS,
        min_length=1,
        description="What it is asked, for P(yes); {prompt} is the image's own caption.",
    )

    @property
    def asked(self) -> Asked:
        """About one image."""
        return Asked(in_words=False)


class EditingConfig(EditQuestions):
    """Suite editing: was the instruction followed, and the rest preserved?"""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores edits of scenes.",
    )


class MmmgSuiteConfig(MmmgMeasure):
    """Suite mmmg: how much of a knowledge graph is shown, times readability (MMMG)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores graphs of scenes.",
    )


class ComplexEditSuiteConfig(ComplexEditMeasure):
    """Suite complex_edit: marks of edited images, by level of instruction (Complex-Edit)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores edits of scenes.",
    )


def _of_a_point(question: str) -> str:
    if "{description}" not in question:
        raise ValueError(
            "a judge has to be told what to look for: write {description} where it belongs"
        )
    return question


class UniGenBenchConfig(Section):
    """Suite unigenbench: which test points of its prompt an image shows (UniGenBench)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores scenes.",
    )
    ask: Literal["together", "each"] = Field(
        "together",
        description="together: about all test points of an image in one question, as published; "
        "each: a yes or no to each, for judges that write no lists. Scenes are asked about in the "
        "embedded judge's words then.",
    )
    question: Annotated[str, AfterValidator(_of_a_point)] = Field(
        "This image was made for the prompt: {prompt}\n"
        "Is this plainly and rightly to be seen in it: {description}? What is meant: {point}, that "
        "is, {definition}. Answer yes or no.",
        description="With ask: each, what is asked about a test point of a prompt that is no "
        "scene's, for P(yes); above one half is yes. {prompt}, {point}, {definition} and "
        "{description} are put in.",
    )

    @property
    def asked(self) -> Asked:
        """About one image."""
        if self.ask == "together":
            return Asked()
        return Asked(_TEST_POINTS, in_words=False, is_exact=False)
