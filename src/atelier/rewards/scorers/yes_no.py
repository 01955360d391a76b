"""Reward `yes_no`: the probability that a judge says yes.

An image's prompt is put into each question; with several questions the mean counts, and an image
without an answer to one of them has no score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from atelier.config.sections.rewards import YesNoConfig
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.judged import JudgedScorer, missing, red_circle, words
from atelier.rewards.scorers.judges import SharedJudge


class YesNoScorer(JudgedScorer):
    """Mean P(yes) over the questions, in [0, 1]. Details: P(yes) by the question's name."""

    name = "yes_no"

    def __init__(self, config: YesNoConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self.config = config

    def score(self, batch: ScoreBatch) -> Scores:
        questions, owners = [], []
        lacking: dict[int, str] = {}
        for index in range(len(batch)):
            images = self._images(batch, index)
            if images is None:
                lacking[index] = "there is no source image to show first"
                continue
            for text in self.config.questions.values():
                prompt = text.replace("{prompt}", batch.prompts[index])
                questions.append(Question(prompt, YesNoForm(), images))
                owners.append(index)
        answers: list[list[Answer]] = [[] for _ in batch.images]
        for owner, answer in zip(owners, self.judge.ask(questions), strict=True):
            answers[owner].append(answer)
        scores: list[Score] = [
            Missing(lacking[index]) if index in lacking else _mean(own)
            for index, own in enumerate(answers)
        ]
        details = [self._seen(own) for own in answers]
        return Scores(self.name, scores, details)

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A red circle, asked for as such and as a blue square: on the right side of one half."""
        circle = red_circle()
        prompts = ["a red circle", "a blue square"]
        batch = ScoreBatch(
            images=[circle] * 2,
            prompts=prompts,
            metadata=[{}] * 2,
            group_ids=[0, 1],
            source_images=[circle] * 2 if self.config.show_source else None,
        )
        return batch, [1.0, 0.0], 0.45

    def _seen(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """P(yes) by the question's name, and what was said: a server says words, too."""
        pairs = zip(self.config.questions, answers, strict=False)
        found: dict[str, Any] = {name: one.numbers.get("p_yes") for name, one in pairs}
        said = [text for one in answers for text in words(one)]
        return found | ({"judge": said} if said else {})

    def _images(self, batch: ScoreBatch, index: int) -> list[Image.Image] | None:
        image = batch.images[index]
        if not self.config.show_source:
            return [image]
        source = None if batch.source_images is None else batch.source_images[index]
        return None if source is None else [source, image]


def _mean(answers: Sequence[Answer]) -> Score:
    for answer in answers:
        if "p_yes" not in answer.numbers:
            return missing(answer)
    return sum(answer.numbers["p_yes"] for answer in answers) / len(answers)
