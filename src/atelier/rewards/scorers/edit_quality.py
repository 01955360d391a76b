"""Reward `edit_quality`: a judge's marks for an edited image, 0 to 10 (spec qwen 1.6, 3.2).

Two questions an image: source and edited image with the instruction, for instruction following (IF)
and identity preservation (IP); the edited image alone, for perceptual quality (PQ). An image that
was not edited at all has IP 10, so IP counts only as far as IF allows (`ip_gate`).

Deviation: an image without marks, or without a source, is Missing, where the published reward gives
one half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from PIL.Image import Image
from pydantic import BaseModel

from atelier.config.rewards import EditQualityConfig
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject
from atelier.judge.forms import JsonForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.edit_rubric import ALIGNMENT, QUALITY
from atelier.rewards.scorers.judged import JudgedScorer, missing, red_circle, words
from atelier.rewards.scorers.judges import SharedJudge

Mark = Literal["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
HIGHEST = 10.0


class Alignment(BaseModel):
    """The answer to the first question. Reasons come first, so that marks follow from them."""

    reasoning: str
    instruction_following: Mark
    identity_preservation: Mark


class Quality(BaseModel):
    """The answer to the second question."""

    reasoning: str
    perceptual_quality: Mark


class EditQualityScorer(JudgedScorer):
    """Weighted sum of the marks, each divided by 10; in [0, sum of the weights].

    Details: the means over measurements by name, `overall` (the mean of the three, as Complex-Edit
    reports it), and what the judge said.
    """

    name = "edit_quality"

    def __init__(self, config: EditQualityConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self.config = config
        self.value_range = (0.0, config.if_weight + config.ip_weight + config.pq_weight)

    def score(self, batch: ScoreBatch) -> Scores:
        sources = batch.source_images or [None] * len(batch)
        questions, asked = [], []
        for index, source in enumerate(sources):
            if source is not None:
                asked.append(index)
                questions += self._questions(source, batch.images[index], batch.prompts[index])
        answers = self.judge.ask(questions)
        scores: list[Score] = [Missing("there is no source image to compare with")] * len(batch)
        details: list[Mapping[str, Any]] = [{}] * len(batch)
        for index, alignment, quality in zip(asked, answers[::2], answers[1::2], strict=True):
            scores[index], details[index] = self._scored(alignment, quality)
        return Scores(self.name, scores, details)

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
        expected = [combined(self.config, following, 10, 8) for following in (10, 0)]
        return batch, expected, 0.45 * max(expected[0] - expected[1], 0.4 * self.value_range[1])

    def _questions(self, source: Image, edited: Image, instruction: str) -> list[Question]:
        alignment = self.config.alignment_question or ALIGNMENT
        quality = self.config.quality_question or QUALITY
        return [
            Question(
                alignment.replace("{prompt}", instruction), JsonForm(Alignment), [source, edited]
            ),
            Question(quality.replace("{prompt}", instruction), JsonForm(Quality), [edited]),
        ]

    def _scored(self, alignment: Answer, quality: Answer) -> tuple[Score, Mapping[str, Any]]:
        said = {"judge": words(alignment) + words(quality)}
        for answer in (alignment, quality):
            if answer.missing is not None:
                return missing(answer), said
        marks = {**alignment.numbers, **quality.numbers}
        score = combined(
            self.config,
            marks["instruction_following"],
            marks["identity_preservation"],
            marks["perceptual_quality"],
        )
        return score, {**said, **marks, "overall": sum(marks.values()) / len(marks)}


def combined(
    config: EditQualityConfig, following: float, preservation: float, quality: float
) -> float:
    """The weighted sum of three marks in [0, 10], each divided by 10."""
    following, preservation, quality = (
        mark / HIGHEST for mark in (following, preservation, quality)
    )
    if config.ip_gate == "product":
        preservation *= following
    elif config.ip_gate == "min":
        preservation = min(preservation, following)
    return (
        config.if_weight * following + config.ip_weight * preservation + config.pq_weight * quality
    )
