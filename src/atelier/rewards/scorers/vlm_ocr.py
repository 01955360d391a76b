"""Reward `vlm_ocr`: how much of the target text a judge reads in the image.

The judge's text is compared by the rule of `ocr`, with all white space removed. Deviation: an image
whose text was not read is Missing, where the published reward gives 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from atelier.config.sections.rewards import VlmOcrConfig
from atelier.judge.forms import TextForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.images import drawn_word
from atelier.rewards.scorers.judged import JudgedScorer, detail, missing
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.text import similarity


class VlmOcrScorer(JudgedScorer):
    """Similarity of the text read to `metadata["target"]`, in [0, 1]; the mean over measurements.

    Details: what the judge said, and `target`.
    """

    name = "vlm_ocr"

    def __init__(self, config: VlmOcrConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self.config = config

    def score(self, batch: ScoreBatch) -> Scores:
        targets = [target_of(metadata) for metadata in batch.metadata]
        asked = [index for index, target in enumerate(targets) if target is not None]
        form = TextForm()
        answers = self.judge.ask(
            [Question(self.config.question, form, [batch.images[index]]) for index in asked]
        )
        scores: list[Score] = [Missing("the prompt's metadata has no target text")] * len(batch)
        details: list[Mapping[str, Any]] = [{"target": target} for target in targets]
        for index, answer in zip(asked, answers, strict=True):
            scores[index] = self._score(str(targets[index]), answer)
            details[index] = detail(answer, target=targets[index])
        return Scores(self.name, scores, details)

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A word read right, the same word with a wrong target, and an empty image."""
        word = drawn_word("HELLO")
        targets = ["Hello", "HELP", "HELLO"]
        batch = ScoreBatch(
            images=[word, word, Image.new("RGB", word.size, "white")],
            prompts=[f'the word "{target}"' for target in targets],
            metadata=[{"target": target} for target in targets],
            group_ids=list(range(len(targets))),
        )
        return batch, [1.0, 0.5, 0.0], 0.25

    def _score(self, target: str, answer: Answer) -> Score:
        if answer.missing is not None:
            return missing(answer)
        read = [
            "" if text == self.config.no_text else without_space(text) for text in answer.values
        ]
        return sum(similarity(target, [text]) for text in read) / len(read)


def target_of(metadata: Mapping[str, Any]) -> str | None:
    """The target text without white space, None where there is none."""
    target = metadata.get("target")
    return (without_space(target) or None) if isinstance(target, str) else None


def without_space(text: str) -> str:
    """Without any white space: line breaks and ideographic spaces, too."""
    return "".join(text.split())
