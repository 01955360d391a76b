"""Reward `unified_reward`: a judge's mark for one image, 1 to 5.

Deviations: an image without a mark, or without one of two, is Missing; the published rewards give
0, or the mean of the call's other images. A mark out of range (`10`) is none, where they read `1`.
"""

from __future__ import annotations

from collections.abc import Sequence

from atelier.config.sections.rewards import UnifiedRewardConfig
from atelier.judge.forms import DimensionsForm, Form, NumberForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Score, ScoreBatch, Scores
from atelier.rewards.scorers.judged import JudgedScorer, detail, missing, red_circle
from atelier.rewards.scorers.judges import SharedJudge

LOWEST, HIGHEST = 1.0, 5.0
DIMENSIONS = ("Alignment Score", "Style Score")

_FINAL_SCORE = (
    "This image was made for the prompt: {prompt}\n"
    "Judge how well it shows what the prompt asks for, and how well it is made. End with one line, "
    "a number from 1 (bad) to 5 (excellent):\nFinal Score: <number>"
)
_DIMENSIONS = (
    "This image was made for the prompt: {prompt}\n"
    "Mark it from 1 (bad) to 5 (excellent): alignment is how well it shows what the prompt asks "
    "for, style is how well it is made. Answer with two lines:\n"
    "Alignment Score (1-5): <number>\nStyle Score (1-5): <number>"
)


class UnifiedRewardScorer(JudgedScorer):
    """The mark, in [0.2, 1] (`scale: fifths`) or [1, 5] (`raw`). Details: what the judge said, and
    its numbers."""

    name = "unified_reward"

    def __init__(self, config: UnifiedRewardConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self._divisor = HIGHEST if config.scale == "fifths" else 1.0
        self.value_range = LOWEST / self._divisor, HIGHEST / self._divisor
        dimensions = config.form == "dimensions"
        self._question = config.question or (_DIMENSIONS if dimensions else _FINAL_SCORE)
        self._form: Form = (
            DimensionsForm(DIMENSIONS, LOWEST, HIGHEST)
            if dimensions
            else NumberForm("Final Score", LOWEST, HIGHEST)
        )

    def score(self, batch: ScoreBatch) -> Scores:
        answers = self.judge.ask(
            [
                Question(self._question.replace("{prompt}", prompt), self._form, [image])
                for image, prompt in zip(batch.images, batch.prompts, strict=True)
            ]
        )
        return Scores(
            self.name, [self._score(one) for one in answers], [detail(one) for one in answers]
        )

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A red circle, asked for as such and as something else: a good mark and a bad one."""
        circle = red_circle(size=256)
        prompts = ["a red circle", "a photo of two blue cars in a street at night"]
        low, high = self.value_range
        return ScoreBatch([circle] * 2, prompts, [{}] * 2, [0, 1]), [high, low], 0.49 * (high - low)

    def _score(self, answer: Answer) -> Score:
        if not answer.numbers:
            return missing(answer)
        return sum(answer.numbers.values()) / len(answer.numbers) / self._divisor
