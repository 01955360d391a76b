"""A question about images, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL.Image import Image

from atelier.judge.forms import Form
from atelier.judge.replies import Failure, Parsed, Reply


@dataclass(frozen=True)
class Question:
    """What the judge is asked.

    Attributes:
        prompt: the text, which comes after the images.
        form: what the answer looks like.
        images: any number, in the order the text speaks of them.
        system: a system message.
    """

    prompt: str
    form: Form
    images: Sequence[Image] = ()
    system: str | None = None


@dataclass(frozen=True)
class Answer:
    """An answer, or the reason why there is none.

    Attributes:
        numbers: means over the measurements that could be read, by name (see the form): of those
            numbers that all of them have. Empty where the answer is missing.
        values: what was read, one a readable measurement. Empty where the answer is missing.
        missing: why there is no answer; None for one.
        retryable: it may be had when asked again later.
        measured: measurements that could be read.
        asked: measurements that were wanted.
        replies: what the judge said, word for word, whether it could be read or not.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    values: tuple[Any, ...] = ()
    missing: str | None = None
    retryable: bool = False
    measured: int = 0
    asked: int = 1
    replies: tuple[Reply, ...] = ()


def answer_of(
    form: Form, outcomes: Sequence[Parsed[Any] | Failure], min_measured_share: float
) -> Answer:
    """The answer that a question's measurements give: their mean, if enough could be read."""
    values = tuple(one.value for one in outcomes if isinstance(one, Parsed))
    failures = [one for one in outcomes if isinstance(one, Failure)]
    replies = tuple(one.reply for one in outcomes if one.reply is not None)
    asked, measured = len(outcomes), len(values)
    if measured < min_measured_share * asked or not measured:
        reason = failures[0].reason
        if asked > 1:
            reason = f"{measured} of {asked} measurements could be read: {reason}"
        retryable = any(one.retryable for one in failures)
        return Answer({}, (), reason, retryable, measured, asked, replies)
    means = _means([form.numbers(value) for value in values])
    return Answer(means, values, None, False, measured, asked, replies)


def _means(measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
    shared = [name for name in measured[0] if all(name in one for one in measured)]
    return {name: sum(one[name] for one in measured) / len(measured) for name in shared}
