"""What a judge said, and what became of it: a value, or a failure with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from atelier.legible import legible

Value = TypeVar("Value")


@dataclass(frozen=True)
class Reply:
    """What a judge said, word for word.

    Attributes:
        finish_reason: why it stopped, in the endpoint's words; None where it does not say.
        refusal: its refusal, where the endpoint reports one apart from the text.
        first_token: (token, log-probability) of the likeliest first tokens; None without.
    """

    text: str
    finish_reason: str | None = None
    refusal: str | None = None
    first_token: tuple[tuple[str, float], ...] | None = None


@dataclass(frozen=True)
class Parsed(Generic[Value]):
    """What was asked for, read from a reply."""

    value: Value
    reply: Reply


@dataclass(frozen=True)
class Failure:
    """There is no value.

    Attributes:
        reply: what was said instead; None where nothing was.
        repairable: the judge may put into the right form what it said.
        retryable: the value may be had when asked again later.
    """

    reason: str
    reply: Reply | None = None
    repairable: bool = False
    retryable: bool = False


class CallFailed(Exception):
    """A call gave no reply.

    Attributes:
        retryable: the next one may.
        for_good: the endpoint would refuse every question, as it is configured.
        sent: it may have been served, and billed.
        retry_after: seconds that the endpoint asks to be left alone.
    """

    def __init__(
        self,
        reason: str,
        *,
        retryable: bool = True,
        for_good: bool = False,
        sent: bool = False,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.for_good = for_good
        self.sent = sent
        self.retry_after = retry_after


def excerpt(text: str) -> str:
    """A few words of somebody else's, on one printable line, for a reason."""
    line = legible(text[:1000])
    return line if len(line) <= 80 else f"{line[:80]}..."
