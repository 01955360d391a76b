"""Reward `edit_yes_no`: does an edit follow its instruction and keep the rest.

    F x following_weight + P x preserving_weight, F and P the mean P(yes) of their questions

A judge is shown source and edited image and asked about the instruction, or it is shown the edited
image alone and asked what the data set says of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image

from atelier.config.sections.rewards import EditYesNoConfig
from atelier.data.questions import NO, YES
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.edit_gate import followed_and_kept
from atelier.rewards.scorers.judged import JudgedScorer, missing
from atelier.rewards.scorers.judges import SharedJudge

SIDES = ("following", "preserving")


@dataclass(frozen=True)
class Asked:
    """One question about one image of a batch, and the answer that is right."""

    owner: int
    side: str
    question: Question
    right: str


class EditYesNoScorer(JudgedScorer):
    """Details: following and preserving, each in [0, 1]."""

    name = "edit_yes_no"

    def __init__(self, config: EditYesNoConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self.config = config
        self.value_range = (0.0, config.following_weight + config.preserving_weight)

    def score(self, batch: ScoreBatch) -> Scores:
        lacking = {index: why for index in range(len(batch)) if (why := self._lack(batch, index))}
        asked = [one for index in range(len(batch)) for one in self._asked(batch, index, lacking)]
        answers = self.judge.ask([one.question for one in asked])
        found: list[dict[str, list[float]]] = [{side: [] for side in SIDES} for _ in batch.images]
        absent: dict[int, Missing] = {index: Missing(why) for index, why in lacking.items()}
        for one, answer in zip(asked, answers, strict=True):
            if "p_yes" not in answer.numbers:
                absent.setdefault(one.owner, missing(answer))
                continue
            found[one.owner][one.side].append(_right(answer, one.right))
        means = [{side: _mean(values[side]) for side in SIDES} for values in found]
        scores: list[Score] = [
            absent[index] if index in absent else self.combined(**sides)
            for index, sides in enumerate(means)
        ]
        details = [{} if index in absent else sides for index, sides in enumerate(means)]
        return Scores(self.name, scores, details)

    def combined(self, following: float, preserving: float) -> float:
        """The reward."""
        return followed_and_kept(self.config, following, preserving)

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """Beside a green cross, a blue square made a red circle as it was asked for, and the square
        left as it was: the cross is kept both times."""
        source, edited = _beside_a_cross("square", "blue"), _beside_a_cross("circle", "red")
        following = [["Is there a red circle? Answer yes or no.", YES]]
        preserving = [["Is there a green cross? Answer yes or no.", YES]]
        batch = ScoreBatch(
            images=[edited, source],
            prompts=["Replace the blue square with a red circle."] * 2,
            metadata=[{"following": following, "preserving": preserving}] * 2,
            group_ids=[0, 1],
            source_images=[source] * 2,
        )
        expected = [self.combined(1.0, 1.0), self.combined(0.0, 1.0)]
        # Without a weight of following both are expected to be alike, and no judge is that exact.
        apart = max(expected[0] - expected[1], 0.4 * self.value_range[1])
        return batch, expected, 0.45 * apart

    def _lack(self, batch: ScoreBatch, index: int) -> str | None:
        """Why an image cannot be asked about."""
        if self.config.about == "instruction":
            there = batch.source_images is not None and batch.source_images[index] is not None
            return None if there else "there is no source image to show first"
        following, preserving = (_facts(batch.metadata[index], side) for side in SIDES)
        if following and preserving is not None:
            return None
        return "its prompt has no questions with yes or no (metadata following and preserving)"

    def _asked(self, batch: ScoreBatch, index: int, lacking: dict[int, str]) -> Iterator[Asked]:
        if index in lacking:
            return
        image = batch.images[index]
        if self.config.about == "facts":
            for side in SIDES:
                for text, right in _facts(batch.metadata[index], side) or ():
                    yield Asked(index, side, Question(text, YesNoForm(), [image]), right)
            return
        assert batch.source_images is not None  # else it lacks it
        source = batch.source_images[index]
        assert source is not None
        texts = (self.config.following_question, self.config.preserving_question)
        for side, text in zip(SIDES, texts, strict=True):
            filled = text.replace("{prompt}", batch.prompts[index])
            yield Asked(index, side, Question(filled, YesNoForm(), [source, image]), YES)


def _beside_a_cross(shape: str, colour: str) -> Image:
    cross, other = SceneObject("cross", "green", (0, 0)), SceneObject(shape, colour, (2, 2))
    return render(Scene(objects=(cross, other)), size=64)


def _facts(metadata: Mapping[str, Any], side: str) -> list[tuple[str, str]] | None:
    """The questions of a data set with their right answers; None where they are something else."""
    rows = metadata.get(side, [])
    if not isinstance(rows, list):
        return None
    facts = [tuple(row) for row in rows if isinstance(row, list) and len(row) == 2]
    right = [one for one in facts if isinstance(one[0], str) and one[1] in (YES, NO)]
    return right if len(right) == len(rows) else None


def _right(answer: Answer, right: str) -> float:
    """Probability of the right answer."""
    p_yes = answer.numbers["p_yes"]
    return p_yes if right == YES else 1 - p_yes


def _mean(values: Sequence[float]) -> float:
    """Of nothing, 1: nothing was to be kept."""
    return sum(values) / len(values) if values else 1.0
