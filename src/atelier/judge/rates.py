"""When a call may start: calls and tokens a minute, and pauses the endpoint asks for.

Belongs to one event loop; times are that loop's.
"""

from __future__ import annotations

import asyncio

_LONGEST_HOLD = 120.0  # seconds; a mistaken Retry-After must not silence a judge for ever


class RateLimit:
    """Spaces calls evenly and keeps the tokens of each minute within their bound.

    What a call will use is not known before it: it is reserved as the mean of the calls so far.
    """

    def __init__(self, requests_per_minute: float | None, tokens_per_minute: float | None) -> None:
        self._interval = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._next_start = 0.0
        self._held_until = 0.0
        self._per_second = tokens_per_minute / 60.0 if tokens_per_minute else None
        self._balance = tokens_per_minute or 0.0  # a minute's worth, at most
        self._refilled = 0.0
        self._calls = self._tokens = 0

    async def turn(self) -> float:
        """Wait until a call may start. Returns the tokens reserved for it, for `settle`."""
        while (seconds := self._free_at() - _now()) > 0:
            await asyncio.sleep(seconds)
        self._next_start = _now() + self._interval
        reserved = self._tokens / self._calls if self._calls else 0.0
        self._balance -= reserved
        return reserved

    def settle(self, reserved: float, used: int | None) -> None:
        """Tell what a call used; None where it is not known."""
        if used is not None:
            self._calls += 1
            self._tokens += used
            self._balance += reserved - used

    def hold(self, seconds: float) -> None:
        """Start nothing for so long, because the endpoint asks for it."""
        self._held_until = max(self._held_until, _now() + min(seconds, _LONGEST_HOLD))

    def _free_at(self) -> float:
        return max(self._next_start, self._held_until, self._tokens_at())

    def _tokens_at(self) -> float:
        """When there are tokens to spend again."""
        if self._per_second is None:
            return 0.0
        now = _now()
        if self._refilled:
            refill = (now - self._refilled) * self._per_second
            self._balance = min(self._balance + refill, 60.0 * self._per_second)
        self._refilled = now
        return now if self._balance > 0 else now + (1.0 - self._balance) / self._per_second


def _now() -> float:
    return asyncio.get_running_loop().time()
