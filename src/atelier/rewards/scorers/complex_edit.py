"""Reward `complex_edit`: a judge's marks for an edited image, 0 to 10.

Two questions an image: source and edited image with the instruction, for instruction following (IF)
and identity preservation (IP); the edited image alone, for perceptual quality (PQ). An image that
was not edited at all has IP 10 and a PQ as good as its source's, so both count only as far as IF
allows (`gate`).

Deviation: an image without marks, or without a source, is Missing, where the published reward gives
one half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL.Image import Image

from atelier.complex_edit.marks import HIGHEST, Alignment, Marks, Quality, marks_of
from atelier.complex_edit.rubric import ALIGNMENT, QUALITY
from atelier.config.sections.complex_edit import ComplexEditMeasure
from atelier.config.sections.rewards import ComplexEditConfig
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject
from atelier.judge.forms import JsonForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.edit_gate import gated
from atelier.rewards.scorers.judged import JudgedScorer, missing, red_circle, words
from atelier.rewards.scorers.judges import SharedJudge

Seen = Mapping[str, Any]
NO_SOURCE = "there is no source image to compare with"


class ComplexEditScorer(JudgedScorer):
    """Weighted sum of the marks, each divided by 10; in [0, sum of the weights].

    Details: the means over measurements by name, `overall` (the mean of the three, as Complex-Edit
    reports it), and what the judge said.
    """

    name = "complex_edit"

    def __init__(self, config: ComplexEditConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self.config = config
        self._asking = ComplexEditJudge(config, judge)
        self.value_range = (0.0, config.if_weight + config.ip_weight + config.pq_weight)

    def score(self, batch: ScoreBatch) -> Scores:
        found = self._asking.ask(batch)
        scores: list[Score] = [
            one if isinstance(one, Missing) else combined(self.config, one) for one, _ in found
        ]
        return Scores(self.name, scores, [seen for _, seen in found])

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A blue square made a red circle as it was asked for, and the square left as it was."""
        square = render(Scene(objects=(SceneObject("square", "blue", (1, 1)),)), size=256)
        batch = ScoreBatch(
            images=[red_circle(size=256), square],
            prompts=["Replace the blue square with a red circle."] * 2,
            metadata=[{}] * 2,
            group_ids=[0, 1],
            source_images=[square] * 2,
        )
        expected = [combined(self.config, Marks(following, 10, 8)) for following in (10, 0)]
        return batch, expected, 0.45 * max(expected[0] - expected[1], 0.4 * self.value_range[1])


class ComplexEditJudge:
    """Asks a judge for the marks of edited images."""

    def __init__(self, config: ComplexEditMeasure, judge: SharedJudge) -> None:
        self._alignment = config.alignment_question or ALIGNMENT
        self._quality = config.quality_question or QUALITY
        self._judge = judge

    def ask(self, batch: ScoreBatch) -> list[tuple[Marks | Missing, Seen]]:
        """The marks of each image, and what was seen: the marks by name, the judge's words."""
        sources = batch.source_images or [None] * len(batch)
        questions = [
            question
            for source, image, prompt in zip(sources, batch.images, batch.prompts, strict=True)
            if source is not None
            for question in self._questions(source, image, prompt)
        ]
        answers = iter(self._judge.ask(questions))
        return [
            (Missing(NO_SOURCE), {}) if source is None else _read(next(answers), next(answers))
            for source in sources
        ]

    def _questions(self, source: Image, edited: Image, instruction: str) -> list[Question]:
        alignment, quality = (
            text.replace("{prompt}", instruction) for text in (self._alignment, self._quality)
        )
        return [
            Question(alignment, JsonForm(Alignment), [source, edited]),
            Question(quality, JsonForm(Quality), [edited]),
        ]


def _read(alignment: Answer, quality: Answer) -> tuple[Marks | Missing, Seen]:
    said = {"judge": words(alignment) + words(quality)}
    for answer in (alignment, quality):
        if answer.missing is not None:
            return missing(answer), said
    numbers = {**alignment.numbers, **quality.numbers}
    marks = marks_of(numbers)
    return marks, {**said, **numbers, "overall": marks.overall}


def combined(config: ComplexEditConfig, marks: Marks) -> float:
    """The weighted sum of the marks, each divided by 10; IP and PQ behind their gate."""
    following = marks.following / HIGHEST
    preservation, quality = (
        gated(mark / HIGHEST, following, config.gate)
        for mark in (marks.preservation, marks.quality)
    )
    return (
        config.if_weight * following + config.ip_weight * preservation + config.pq_weight * quality
    )
