"""What judges are asked in a whole run, and what that may cost, before anything starts.

Calls are counted without repairs, and as if no cache had an answer. Tokens are not known before a
judge has answered, so money rests on assumptions, each a constant here, which the plan repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atelier.config.asked_judges import judged_here
from atelier.config.schema import RunConfig
from atelier.config.sections.judge import ANSWER_LIMITS, JudgeConfig
from atelier.config.sections.questions import Asked

PICTURE_TOKENS = 1000  # of 1024 x 1024 pixels: 765 to GPT-4o, 1 369 to Qwen2.5-VL
SMALL_PICTURE_TOKENS = 85  # with image_detail: low
QUESTION_TOKENS = 500
WORDS_TOKENS = 500  # of an answer in words; one that is thought about takes thousands
_THINKING = ("reasoning_effort", "reasoning")
_MILLION = 1e6


@dataclass(frozen=True)
class JudgeWork:
    """What one key of the configuration has one judge asked in a whole run.

    Attributes:
        asker: the key, such as rewards.mmmg or evaluation.mmmg.
        judge: its name in `judges`.
        asked: about one image.
        questions: about all images, at one measurement.
        calls: for them, with all measurements; at most, where groups are resampled.
    """

    asker: str
    judge: str
    asked: Asked
    questions: float
    calls: int

    @property
    def evaluates(self) -> bool:
        """Whether held-out images are asked about, and none that is trained on."""
        return self.asker.startswith("evaluation.")


@dataclass(frozen=True)
class Cost:
    """What a judge's calls may cost, in the currency of its prices.

    Attributes:
        money: with the tokens that are assumed; None without prices.
        input, output: tokens of a call that are assumed, on average.
        most: money where every answer is as long as may be; None where nothing says how long.
        limit: tokens of an answer at most, likewise.
        thinks: whether it is told to think first, which takes tokens of the answer.
    """

    money: float | None
    input: float
    output: float
    most: float | None
    limit: int | None
    thinks: bool

    @property
    def upper(self) -> float:
        """The most money that is known of; 0 without prices."""
        return max(self.money or 0.0, self.most or 0.0)


def judge_work(config: RunConfig, scored: int, evaluated: int) -> tuple[JudgeWork, ...]:
    """What every reward that this run scores itself, and the suite, ask.

    Args:
        scored: images that rewards are asked about.
        evaluated: images of all evaluations.
    """
    return tuple(
        JudgeWork(
            asker,
            judge,
            asked,
            questions=images * asked.questions,
            calls=round(images * asked.questions * _calls_a_question(config.judges[judge])),
        )
        for asker, judge, asked, images in _askers(config, scored, evaluated)
    )


def judge_costs(config: RunConfig, works: Sequence[JudgeWork]) -> Iterator[tuple[str, Cost]]:
    """What each judge that is asked may cost; not those that the run starts itself and that have no
    prices."""
    for name, judge in config.judges.items():
        own = [one for one in works if one.judge == name and one.calls]
        if own and (judge.prices is not None or judge.placement == "remote"):
            yield name, _cost(judge, own)


def budget_warnings(config: RunConfig, works: Sequence[JudgeWork]) -> Iterator[tuple[str, str]]:
    """Key and warning of budgets that a run of this plan would pass."""
    for name, judge in config.judges.items():
        own = [one for one in works if one.judge == name]
        if judge.budget is None or not own:
            continue
        stops = judge.budget.exceeded == "stop"
        then = "it would stop before its end" if stops else "the rest would have no answer"
        calls, cost = sum(one.calls for one in own), _cost(judge, own)
        if judge.budget.calls is not None and calls > judge.budget.calls:
            yield (
                f"judges.{name}.budget.calls",
                f"{judge.budget.calls:,}, and this run makes about {calls:,}: {then}",
            )
        most = judge.budget.money
        if most is not None and cost.money is not None and cost.upper > most:
            costs = f"costs about {cost.money:,.2f}"
            if cost.money <= most:
                costs = f"may pass it: it {costs}, and {cost.upper:,.2f} with the longest answers"
            yield (
                f"judges.{name}.budget.money",
                f"{most:g}, and this run {costs}, with the tokens that the plan assumes: {then}",
            )


def _askers(
    config: RunConfig, scored: int, evaluated: int
) -> Iterator[tuple[str, str, Asked, int]]:
    """Key, judge, what it is asked about an image, and how many images."""
    for path, section in judged_here(config):
        asked = section.asked_of_an_image(config.rollout.group_size)
        yield path, section.judge, asked, scored
    evaluation = config.evaluation
    if evaluation.judge is not None:
        asked = evaluation.asked_by(evaluation.suite)
        yield f"evaluation.{evaluation.suite}", evaluation.judge, asked, evaluated


def _calls_a_question(judge: JudgeConfig) -> int:
    return math.ceil(judge.measurements / judge.choices)


def _cost(judge: JudgeConfig, works: Sequence[JudgeWork]) -> Cost:
    limit = _limit(judge)
    picture = SMALL_PICTURE_TOKENS if judge.image_detail == "low" else PICTURE_TOKENS
    sent = sum(one.calls * (QUESTION_TOKENS + one.asked.pictures * picture) for one in works)
    answers = [(one.questions * judge.measurements, one.asked.in_words) for one in works]
    usual = WORDS_TOKENS if limit is None else min(WORDS_TOKENS, limit)
    said = sum(count * (usual if in_words else 1) for count, in_words in answers)
    longest = sum(count * ((limit or 0) if in_words else 1) for count, in_words in answers)
    calls = max(1, sum(one.calls for one in works))
    return Cost(
        money=_money(judge, sent, said),
        input=sent / calls,
        output=said / calls,
        most=None if limit is None else _money(judge, sent, longest),
        limit=limit,
        thinks=any(judge.parameters.get(name) not in (None, "none") for name in _THINKING),
    )


def _money(judge: JudgeConfig, sent: float, said: float) -> float | None:
    """Nothing is taken to be read from the provider's cache."""
    if judge.prices is None:
        return None
    return (sent * judge.prices.input + said * judge.prices.output) / _MILLION


def _limit(judge: JudgeConfig) -> int | None:
    """Tokens of an answer at most, where the parameters of its calls say it."""
    found = [judge.parameters.get(name) for name in ANSWER_LIMITS]
    return next((one for one in found if isinstance(one, int)), None)
