"""The judge's client: questions in, answers out, in their order, each right or missing.

Whatever an endpoint does, a question ends with an answer or with the reason why there is none: a
failed call is made again with exponential back-off and full jitter until the deadline, an answer
that cannot be read goes back to the judge once, and only what no question could survive is raised.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Self, TypeVar

from atelier.config.access_tokens import token_of
from atelier.config.sections.judge import JudgeConfig
from atelier.errors import ConfigError, Stopped
from atelier.event_loop import Closed, EventLoop, Forked
from atelier.judge.asked import Asked, Measured, Messages, complaint
from atelier.judge.cache import ReplyCache, cache_key
from atelier.judge.ledger import BudgetSpent, Ledger
from atelier.judge.questions import Answer, Question, answer_of
from atelier.judge.rates import RateLimit
from atelier.judge.replies import CallFailed, Failure, Parsed, Reply
from atelier.judge.tracing import SampledTrace, Trace
from atelier.judge.usage import JudgeUsage, UsageLog
from atelier.outage import Outage

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0
_Made = TypeVar("_Made")
_GRACE = 10.0  # seconds after the deadline in which what is under way is put away


class JudgeClient:
    """Asks a judge, from any number of threads. Nothing is sent before the first question.

    Args:
        config: the judge.
        key: where the configuration stands, for messages.
        trace: told a share of the questions with their answers, in the thread that asks; what it
            raises is logged and harms nothing.
        trace_share: of the questions, in [0, 1], drawn at random.
        usage: where calls, and what the cache had, are counted; default: nowhere.

    Raises:
        ConfigError: the configuration contradicts itself, or its token is not in the environment.
    """

    def __init__(
        self,
        config: JudgeConfig,
        *,
        key: str = "judge",
        trace: Trace | None = None,
        trace_share: float = 1.0,
        usage: UsageLog | None = None,
    ) -> None:
        from atelier.judge.endpoints import Endpoints  # the openai package: seconds to import

        if conflicts := list(config.conflicts()):
            raise ConfigError("; ".join(f"{key}.{name}: {problem}" for name, problem in conflicts))
        if not config.urls:
            raise ConfigError(f"{key}.urls: the client asks endpoints, and none is named")
        self._config = config
        self._key = key
        self._trace = SampledTrace(key, trace, trace_share)
        self._usage = usage or UsageLog(None, key)
        self._random = random.Random()  # not the global one, which a run may have seeded
        token = token_of(config.token_env, key)
        folder = config.cache.folder
        self._cache = ReplyCache(Path(folder), int(config.cache.max_mb * 1e6)) if folder else None
        prices = {config.model: config.prices} if config.prices else {}
        self._ledger = Ledger(Path(config.ledger) if config.ledger else None, prices, config.budget)
        self._rates = RateLimit(config.requests_per_minute, config.tokens_per_minute)
        self._slots = asyncio.Semaphore(config.concurrency)
        self._alone = asyncio.Lock()
        self._has_answered = False
        self._fatal: ConfigError | Stopped | None = None
        self._outage = Outage(key)
        self._endpoints = Endpoints(config.urls, token, config.concurrency)
        self._loop = EventLoop("judge")

    @property
    def ledger(self) -> Ledger:
        """What was spent."""
        return self._ledger

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers, in the order of the questions; missing ones say why.

        Raises:
            ConfigError: no call was ever answered, and the endpoint refuses every question: a
                wrong token, an unknown model or parameter, no such address.
            Stopped: the budget is spent (`budget.exceeded: stop`), or its ledger cannot be kept.
                Calls under way are finished first, so that what was paid for is in the cache.
        """
        deadline = self._config.deadline
        ended = Answer(missing="not answered before the judge was closed", retryable=True)
        answers = [ended] * len(questions)
        end = time.monotonic() + deadline
        try:
            self._loop.run(lambda: self._answer_all(questions, answers, end), deadline + _GRACE)
        except (Closed, TimeoutError):  # the rest has no answer
            return answers
        except Forked as error:
            return [Answer(missing=str(error))] * len(questions)
        finally:
            self._trace.show(questions, answers)
        return answers

    def close(self) -> None:
        """End every call under way, with what there is, and the connections."""
        self._loop.close(self._endpoints.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # A question ----------------------------------------------------------------------------------

    async def _answer_all(
        self, questions: Sequence[Question], answers: list[Answer], end: float
    ) -> None:
        async def answer_one(index: int) -> None:
            answers[index] = await self._answer(questions[index], end)

        self._fatal = None
        await _all_ended(answer_one(index) for index in range(len(questions)))

    async def _answer(self, question: Question, end: float) -> Answer:
        try:
            asked = await asyncio.to_thread(Asked, question, self._config)
        except (OSError, ValueError, SyntaxError) as error:  # the last from a broken PNG
            return Answer(missing=f"an image cannot be used: {type(error).__name__}: {error}")
        numbers = range(self._config.measurements)
        calls = [numbers[at : at + self._config.choices] for at in numbers[:: self._config.choices]]
        parts = await _all_ended(self._measure(asked, one, end) for one in calls)
        measured = [one for part in parts for one in part]
        return answer_of(question.form, measured, self._config.min_measured_share)

    async def _measure(self, asked: Asked, numbers: Sequence[int], end: float) -> list[Measured]:
        """Measurements that one call may ask for: from the cache, and the others from the judge."""
        keys = [cache_key({**asked.identity, "measurement": number}) for number in numbers]
        known = [await self._known(asked, key) for key in keys]
        self._usage.add(JudgeUsage(from_cache=sum(one is not None for one in known)))
        lacking = [key for key, one in zip(keys, known, strict=True) if one is None]
        fresh = dict(zip(lacking, await self._converse(asked, len(lacking), end), strict=True))
        for key, outcome in fresh.items():
            if self._cache and isinstance(outcome, Parsed):
                await asyncio.to_thread(self._cache.put, key, outcome.reply)
        return [one or fresh[key] for key, one in zip(keys, known, strict=True)]

    async def _known(self, asked: Asked, key: str) -> Measured | None:
        """What the cache has, if it can be read."""
        if not self._cache or not (reply := await asyncio.to_thread(self._cache.get, key)):
            return None
        outcome = asked.read(reply)
        return outcome if isinstance(outcome, Parsed) else None

    async def _converse(self, asked: Asked, count: int, end: float) -> list[Measured]:
        """Ask for so many choices, in one call, or in more where the endpoint gives fewer. Each is
        read by itself."""
        replies: list[Reply] = []
        while len(replies) < count:
            more = await self._call(asked, [], count - len(replies), end)
            if isinstance(more, Failure):
                lacking: list[Measured] = [more] * (count - len(replies))
                return [*await self._read_all(asked, replies, end), *lacking]
            replies += more
        return await self._read_all(asked, replies, end)

    async def _read_all(self, asked: Asked, replies: Sequence[Reply], end: float) -> list[Measured]:
        return await _all_ended(self._read(asked, reply, end) for reply in replies)

    async def _read(self, asked: Asked, reply: Reply, end: float) -> Measured:
        """The value in a reply; one in the wrong form goes back once, with what is wrong."""
        outcome = asked.read(reply)
        if isinstance(outcome, Parsed) or not outcome.repairable:
            return outcome
        repaired = await self._call(asked, complaint(reply, outcome.reason), 1, end)
        if isinstance(repaired, Failure):
            return Failure(
                f"{outcome.reason}; asked for the right form: {repaired.reason}",
                reply,
                retryable=repaired.retryable,
            )
        second = asked.read(repaired[0])
        if isinstance(second, Parsed):
            return second
        return Failure(f"{outcome.reason}; asked for the right form: {second.reason}", repaired[0])

    # A call --------------------------------------------------------------------------------------

    async def _call(
        self, asked: Asked, more: Messages, choices: int, end: float
    ) -> list[Reply] | Failure:
        """1 to `choices` replies, from as many calls as it takes and may take to have one answered.

        Raises:
            ConfigError, Stopped: as `ask` does.
        """
        reason = "the first call has none yet"
        try:
            async with asyncio.timeout(end - time.monotonic()):
                for attempt in range(self._config.retries + 1):
                    try:
                        return await self._one_call(asked, more, choices)
                    except CallFailed as failure:
                        reason = str(failure)
                        if not failure.retryable:
                            return Failure(reason)
                        pause = self._pause(attempt, failure.retry_after)
                    if attempt < self._config.retries:
                        if pause > end - time.monotonic():
                            reason = f"{reason} (no time to wait {pause:.3g} s)"
                            break
                        self._outage.failed(reason, end)
                        await asyncio.sleep(pause)
        except TimeoutError:
            reason = f"no answer by the deadline of {self._config.deadline:g} s: {reason}"
        except BudgetSpent as spent:
            return Failure(f"{self._key}.{spent}")
        return Failure(reason, retryable=True)

    def _pause(self, attempt: int, retry_after: float) -> float:
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(attempt, 16))
        return retry_after + self._random.uniform(0, longest)

    async def _one_call(self, asked: Asked, more: Messages, choices: int) -> list[Reply]:
        """One call, when there is a slot for it and the rates allow it.

        Raises:
            CallFailed, BudgetSpent, ConfigError, Stopped: it gave no reply.
        """
        async with self._slots, self._first_of_a_budget():
            self._require_use()
            reserved_tokens = await self._rates.turn()
            body = await asked.body(more, choices)
            self._require_use()
            reservation = self._reserve()
            usage, sent = None, True
            try:
                replies, usage = await self._endpoints.chat(body, self._config.timeout)
            except CallFailed as failure:
                sent = failure.sent
                self._rates.hold(failure.retry_after)
                self._raise_if_for_good(failure)
                raise
            finally:
                # Also when cancelled: the call may have been served.
                self._usage.add(self._ledger.settle(reservation, usage, sent))
                self._rates.settle(reserved_tokens, usage.total if usage else None)
            self._require_usage(usage is not None)
            self._has_answered = True
            self._outage.answered()
            return replies[:choices]

    def _require_use(self) -> None:
        """Send nothing more once it is known that nothing can be had."""
        if self._fatal is not None:
            raise self._fatal

    def _first_of_a_budget(self) -> AbstractAsyncContextManager[None]:
        """Until the price of one call is known, a budget of money lets one at a time through."""
        known = self._ledger.knows_price(self._config.model)
        return nullcontext() if known or not self._ledger.bounds_money else self._alone

    def _reserve(self) -> str:
        try:
            return self._ledger.reserve(self._config.model)
        except BudgetSpent as spent:
            if self._config.budget is not None and self._config.budget.exceeded == "missing":
                raise
            self._fatal = Stopped(f"{self._key}.{spent}: raise it, then resume")
            raise self._fatal from spent

    def _raise_if_for_good(self, failure: CallFailed) -> None:
        """A refusal of everything is the configuration's fault, until something was answered."""
        if failure.for_good and not self._has_answered:
            self._fatal = ConfigError(
                f"{self._key}: {failure}: check urls, model {self._config.name_at_endpoint!r}, "
                f"parameters and the token ({self._config.token_env or 'token_env is not set'})"
            )
            raise self._fatal from failure

    def _require_usage(self, is_known: bool) -> None:
        if self._ledger.bounds_money and not is_known and not self._has_answered:
            self._fatal = ConfigError(
                f"{self._key}.budget.money: the endpoint does not say how many tokens a call took, "
                "so money cannot be counted; set budget.calls instead"
            )
            raise self._fatal


async def _all_ended(several: Iterable[Awaitable[_Made]]) -> list[_Made]:
    """What all of them give, in order. Every one ends before a failure is raised: what is under way
    is paid for."""
    ended = await asyncio.gather(*several, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return [one for one in ended if not isinstance(one, BaseException)]
