"""Asking a judge which test points of its prompt an image shows: about all of them in one question,
or with a yes or no to each.

An image has a verdict of each of its points, or none: one that lacks some would count with the
points that happened to be answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from PIL.Image import Image

from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.suites import UniGenBenchConfig
from atelier.judge.answers import read_text
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.judge.replies import Failure, Parsed, Reply
from atelier.rewards.scorers.judges import Judge
from atelier.unigenbench.points import Point
from atelier.unigenbench.replies import Malformed, read_verdicts
from atelier.unigenbench.request import language_of, request_text


@dataclass(frozen=True)
class Judged:
    """What a judge said of an image.

    Attributes:
        scores: of each test point, in [0, 1]: 1 or 0, of several measurements the mean. None where
            `missing` says why.
        remarks: of each test point what was said of it, or its P(yes); empty without.
        said: word for word.
    """

    scores: Sequence[float] | None
    remarks: Sequence[Any] = ()
    said: Sequence[str] = ()
    missing: str | None = None


@dataclass(frozen=True)
class PointsForm:
    """A verdict of each test point, in the tags of the published evaluation models. Numbers: by the
    place of the point, from "0"."""

    names: tuple[str, ...]

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        return {}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        text = read_text(reply)
        if isinstance(text, Failure):
            return text
        try:
            return Parsed(read_verdicts(text.value, self.names), reply)
        except Malformed as error:
            return Failure(str(error), reply, repairable=True)

    def numbers(self, value: Any) -> dict[str, float]:
        return {str(place): float(one) for place, one in enumerate(value.scores)}


class Asking(Protocol):
    """A way to ask about the test points of an image."""

    def questions(self, image: Image, prompt: str, points: Sequence[Point]) -> list[Question]: ...

    def read(self, answers: Sequence[Answer]) -> Judged:
        """What the answers to those questions say."""
        ...


class Together:
    """One question about all points, with reasons."""

    def questions(self, image: Image, prompt: str, points: Sequence[Point]) -> list[Question]:
        form = PointsForm(tuple(one.name for one in points))
        return [Question(request_text(prompt, points), form, [image])]

    def read(self, answers: Sequence[Answer]) -> Judged:
        (answer,) = answers
        said = [reply.text for reply in answer.replies]
        if answer.missing is not None:
            return Judged(None, said=said, missing=answer.missing)
        scores = [answer.numbers[str(place)] for place in range(len(answer.numbers))]
        return Judged(scores, answer.values[0].analysis, said)


class Each:
    """A yes or no to each point: P(yes) above one half is a yes."""

    def __init__(self, question: str) -> None:
        self._question = question

    def questions(self, image: Image, prompt: str, points: Sequence[Point]) -> list[Question]:
        return [Question(self._asked(prompt, one), YesNoForm(), [image]) for one in points]

    def read(self, answers: Sequence[Answer]) -> Judged:
        said = [reply.text for answer in answers for reply in answer.replies]
        chances = [answer.numbers.get("p_yes") for answer in answers]
        known = [one for one in chances if one is not None]
        if len(known) < len(chances):
            lacking = answers[chances.index(None)].missing or "the judge gave no number"
            return Judged(None, chances, said, lacking)
        return Judged([float(one > 0.5) for one in known], known, said)

    def _asked(self, prompt: str, point: Point) -> str:
        if point.question is not None:
            return point.question
        words = {
            "prompt": prompt,
            "point": point.name,
            "definition": point.dimension.definition(language_of([point])),
            "description": point.description,
        }
        # In one pass: what a prompt says in braces stays as it is.
        return re.sub(rf"\{{({'|'.join(words)})\}}", lambda one: words[one[1]], self._question)


def ask(
    config: UniGenBenchConfig,
    judge: Judge,
    images: Sequence[tuple[Image, str, Sequence[Point]]],
) -> list[Judged]:
    """What the judge says of each image, with its prompt and test points."""
    asking: Asking = Together() if config.ask == "together" else Each(config.question)
    asked = [asking.questions(*one) for one in images]
    answers: Iterator[Answer] = iter(judge.ask([one for own in asked for one in own]))
    return [asking.read(list(islice(answers, len(own)))) for own in asked]
