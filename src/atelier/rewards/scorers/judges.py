"""The judges that rewards ask: opened by the first question, one for all rewards that share it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from atelier.config.sections.judge import JudgeConfig
from atelier.judge.questions import Answer, Question
from atelier.judge.sleep import Sleeper
from atelier.judge.tracing import SampledTrace
from atelier.judge.usage import JudgeUsage, UsageLog


class Judge(Protocol):
    """What answers questions about images."""

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers, in the order of the questions; missing ones say why.

        Raises:
            ConfigError: it can never answer as it is configured.
            Stopped: its budget is spent.
        """
        ...

    def close(self) -> None:
        """Give back what it holds; an `ask` under way ends soon."""
        ...


@dataclass(frozen=True)
class Tracing:
    """Who is shown questions with their answers.

    Attributes:
        tell: takes the judge's key, a question and its answer, in the thread that asks.
        share: of the questions, in [0, 1].
    """

    tell: Callable[[str, Question, Answer], object]
    share: float


class SharedJudge:
    """A judge that is opened when it is first asked.

    Args:
        config: with the URLs of its servers, where it is not in this process.
        key: where the configuration stands, for messages.
        usage: the file in which it is counted what was asked; default: none.
    """

    def __init__(
        self,
        config: JudgeConfig,
        key: str,
        tracing: Tracing | None = None,
        usage: Path | None = None,
    ) -> None:
        self.config = config
        self.key = key
        self._tracing = tracing
        self._usage = UsageLog(usage, key)
        self._opening = threading.Lock()
        self._waking = threading.Lock()
        self._sleeper: Sleeper | None = None
        self._asleep = False
        self._judge: Judge | None = None
        self._closed = False

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """As `Judge.ask`."""
        if not questions:
            return []
        judge = self._opened()
        if problem := self._wake():
            answers = [Answer(missing=problem, retryable=True)] * len(questions)
        else:
            answers = judge.ask(questions)
        missing = sum(one.missing is not None for one in answers)
        self._usage.add(JudgeUsage(questions=len(questions), missing=missing))
        return answers

    def rest(self, is_main: bool) -> None:
        """No question comes until the next step: let it sleep, where it is configured to.

        Args:
            is_main: whether this rank sends it to sleep; the others only remember.
        """
        if self._judge is None or not self.config.vllm.sleep:
            return
        if is_main:
            self._servers().sleep()
        self._asleep = True

    def close(self) -> None:
        with self._opening:
            self._closed = True
            if self._judge is not None:
                self._judge.close()
        self._usage.close()

    def _wake(self) -> str | None:
        """Why it cannot be woken; None when it is awake."""
        with self._waking:
            problem = self._servers().wake(self.config.deadline) if self._asleep else None
            self._asleep = self._asleep and problem is not None
            return problem

    def _servers(self) -> Sleeper:
        if self._sleeper is None:
            name = self.config.token_env
            self._sleeper = Sleeper(self.config.urls, os.environ.get(name) if name else None)
        return self._sleeper

    def _opened(self) -> Judge:
        with self._opening:
            if self._closed:
                raise RuntimeError(f"{self.key} was closed")
            if self._judge is None:
                self._judge = _open(self.config, self.key, self._tracing, self._usage)
            return self._judge


class _Shown:
    """A judge whose questions are shown by share."""

    def __init__(self, judge: Judge, trace: SampledTrace) -> None:
        self._judge = judge
        self._trace = trace

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        answers = self._judge.ask(questions)
        self._trace.show(questions, answers)
        return answers

    def close(self) -> None:
        self._judge.close()


def shared_judges(
    judges: Mapping[str, JudgeConfig], tracing: Tracing | None = None, usage: Path | None = None
) -> dict[str, SharedJudge]:
    """By name; opens none of them."""
    return {
        name: SharedJudge(one, f"judges.{name}", tracing, usage) for name, one in judges.items()
    }


def _open(config: JudgeConfig, key: str, tracing: Tracing | None, usage: UsageLog) -> Judge:
    trace = None if tracing is None else partial(tracing.tell, key)
    share = 0.0 if tracing is None else tracing.share
    if config.placement == "in_process":
        from atelier.judge_models.local import LocalJudge  # transformers: seconds to import

        judge = LocalJudge(config.model, config.device, config.dtype)
        return _Shown(judge, SampledTrace(key, trace, share))
    from atelier.judge.client import JudgeClient

    return JudgeClient(config, key=key, trace=trace, trace_share=share, usage=usage)
