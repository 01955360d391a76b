"""Reward `unified_reward_think`: the share of the comparisons in its group that an image wins.

Source: DeepGen-RL. Deviations: comparisons without an answer count for nobody, where the
published reward gives half a win to both and so hides an outage; only a judge who says that it is
a tie makes one. An image with too few answers is Missing; pairs are asked about in both orders, and
count where both were answered; the question asks for what such judges were trained to write;
nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atelier.config.sections.rewards import SHOWS, UnifiedRewardThinkConfig
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject
from atelier.judge.forms import Form, VerdictForm, YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.judged import JudgedScorer, red_circle
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.pairs import Pair, Tally, compared, pairs_of, tallies

_VERDICT = (
    "Image 1 and Image 2 were both made for this prompt: {prompt}\n"
    "Compare them dimension by dimension: semantic consistency (how much of the prompt is shown, "
    "and shown rightly), aesthetics (composition, colour, style), authenticity (natural details, "
    "nothing broken), and whatever else matters for this prompt. Give each image 1 to 10 points in "
    "every dimension, with a short reason, and add the points up. Write all of this between "
    "<think> and </think>. The image with more points in total is better: close with exactly "
    "<answer>Image 1 is better</answer> or <answer>Image 2 is better</answer>."
)


@dataclass(frozen=True)
class _Compared:
    """What a judge made of the pairs of a batch.

    Attributes:
        first_won: of each pair, how far its first image won; None without an answer.
        failures: by image, an answer that its comparisons lack.
        seen: of each image, what is known of it by itself.
    """

    first_won: Sequence[float | None]
    failures: Mapping[int, Answer]
    seen: Sequence[Mapping[str, Any]]


class UnifiedRewardThinkScorer(JudgedScorer):
    """Wins per comparison that was answered, in [0, 1]. Needs whole groups in a batch.

    A judge who says which of two images is better is asked about every pair (`form: verdict`); of
    one who says yes or no, P(yes) of each image alone is compared (`p_yes`).

    Details: `asked` and `answered` comparisons of the image; `p_yes` of it.
    """

    name = "unified_reward_think"
    revision = 3

    def __init__(self, config: UnifiedRewardThinkConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self.config = config
        self._alone = config.form == "p_yes"
        self._text = config.question or (SHOWS if self._alone else _VERDICT)

    def score(self, batch: ScoreBatch) -> Scores:
        pairs = pairs_of(batch.group_ids, self.config.both_orders and not self._alone)
        compare = self._compare_alone if self._alone else self._compare_together
        made = compare(batch, pairs)
        found = tallies(len(batch), zip(pairs, made.first_won, strict=True))
        return Scores(
            self.name,
            [self._score(tally, made.failures.get(index)) for index, tally in enumerate(found)],
            [
                {"asked": tally.asked, "answered": tally.answered, **seen}
                for tally, seen in zip(found, made.seen, strict=True)
            ],
        )

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A red circle and a blue square for "a red circle": the circle wins."""
        square = render(Scene(objects=(SceneObject("square", "blue", (1, 1)),)), size=256)
        images = [red_circle(size=256), square]
        return ScoreBatch(images, ["a red circle"] * 2, [{}] * 2, [0, 0]), [1.0, 0.0], 0.3

    def _compare_together(self, batch: ScoreBatch, pairs: Sequence[Pair]) -> _Compared:
        """By a judge that sees both images of a pair."""
        questions = [
            self._question(batch, pair.first, [pair.first, pair.second], VerdictForm())
            for pair in pairs
        ]
        answers = self.judge.ask(questions)
        outcomes = [one.numbers.get("first_is_better") for one in answers]
        failures: dict[int, Answer] = {}
        for pair, answer, outcome in zip(pairs, answers, outcomes, strict=True):
            if outcome is None:
                for index in (pair.first, pair.second):
                    # One that may have an answer later goes before others.
                    if index not in failures or answer.retryable > failures[index].retryable:
                        failures[index] = answer
        return _Compared(outcomes, failures, [{}] * len(batch))

    def _compare_alone(self, batch: ScoreBatch, pairs: Sequence[Pair]) -> _Compared:
        """By what a judge says of each image that has another to be compared with."""
        shown = sorted({index for pair in pairs for index in (pair.first, pair.second)})
        questions = [self._question(batch, index, [index], YesNoForm()) for index in shown]
        answers = dict(zip(shown, self.judge.ask(questions), strict=True))
        p_yes = [
            answers[index].numbers.get("p_yes") if index in answers else None
            for index in range(len(batch))
        ]
        lacking = {index: one for index, one in answers.items() if p_yes[index] is None}
        # A comparison is lost to both images when either has no answer.
        failures = {
            index: lacking[other]
            for pair in pairs
            for index, other in ((pair.first, pair.second), (pair.second, pair.first))
            if other in lacking
        }
        outcomes = [compared(p_yes[pair.first], p_yes[pair.second]) for pair in pairs]
        return _Compared(outcomes, failures | lacking, [{"p_yes": one} for one in p_yes])

    def _question(
        self, batch: ScoreBatch, index: int, shown: Sequence[int], form: Form
    ) -> Question:
        text = self._text.replace("{prompt}", batch.prompts[index])
        return Question(text, form, [batch.images[one] for one in shown])

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
