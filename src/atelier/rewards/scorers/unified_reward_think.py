"""Reward `unified_reward_think`: the share of the comparisons in its group that an image wins.

Source: spec deepgen 5.5. Deviations: comparisons without an answer count for nobody, where the
published reward gives half a win to both and so hides an outage; an image with too few answers is
Missing; pairs are asked about in both orders; nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from atelier.config.rewards import UnifiedRewardThinkConfig
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject
from atelier.judge.forms import VerdictForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.judged import JudgedScorer, red_circle
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.pairs import Pair, Tally, pairs_of, tallies


class UnifiedRewardThinkScorer(JudgedScorer):
    """Wins per comparison that was answered, in [0, 1]. Needs whole groups in a batch.

    Details: `asked` and `answered` comparisons of the image.
    """

    name = "unified_reward_think"

    def __init__(self, config: UnifiedRewardThinkConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self.config = config

    def score(self, batch: ScoreBatch) -> Scores:
        pairs = pairs_of(batch.group_ids, self.config.both_orders)
        answers = self.judge.ask([self._question(batch, pair) for pair in pairs])
        outcomes = [(pair, _first_won(one)) for pair, one in zip(pairs, answers, strict=True)]
        found = tallies(len(batch), outcomes)
        failures = _failures(pairs, answers)
        return Scores(
            self.name,
            [self._score(tally, failures.get(index)) for index, tally in enumerate(found)],
            [{"asked": tally.asked, "answered": tally.answered} for tally in found],
        )

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A red circle and a blue square for "a red circle": the circle wins."""
        square = render(Scene(objects=(SceneObject("square", "blue", (1, 1)),)), size=256)
        images = [red_circle(size=256), square]
        return ScoreBatch(images, ["a red circle"] * 2, [{}] * 2, [0, 0]), [1.0, 0.0], 0.3

    def _question(self, batch: ScoreBatch, pair: Pair) -> Question:
        text = self.config.question.replace("{prompt}", batch.prompts[pair.first])
        shown = [batch.images[pair.first], batch.images[pair.second]]
        return Question(text, VerdictForm(), shown)

    def _score(self, tally: Tally, failure: Answer | None) -> Score:
        if not tally.asked:
            return Missing("it is alone in its group: there is nothing to compare it with")
        if tally.win_rate is None or tally.answered_share < self.config.min_answered_share:
            reason = failure.missing if failure is not None else "no answer"
            return Missing(
                f"{tally.answered} of its {tally.asked} comparisons were answered: {reason}",
                failure is not None and failure.retryable,
            )
        return tally.win_rate


def _first_won(answer: Answer) -> float | None:
    return answer.numbers.get("first_is_better")


def _failures(pairs: Sequence[Pair], answers: Sequence[Answer]) -> dict[int, Answer]:
    """By image, a comparison that has no answer; one that may have it later before others."""
    found: dict[int, Answer] = {}
    for pair, answer in zip(pairs, answers, strict=True):
        if _first_won(answer) is None:
            for index in (pair.first, pair.second):
                if index not in found or answer.retryable > found[index].retryable:
                    found[index] = answer
    return found
