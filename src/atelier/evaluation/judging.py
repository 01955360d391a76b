"""The judge that a suite asks.

An evaluation is written for good, so a judge that cannot be reached is waited for, and then the
stage stops, resumable. Missing in an evaluation is only what a judge that answers gave no answer
to: a refusal, words that cannot be read.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from atelier.config.schema import RunConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.suite_rules import judge_is_reward
from atelier.errors import Stopped
from atelier.judge import usage as judge_usage
from atelier.judge.questions import Answer, Question
from atelier.rewards.asking_again import pause_seconds
from atelier.rewards.scorers.judges import SharedJudge

logger = logging.getLogger(__name__)

ASKED_AT_ONCE = 64  # questions hold their images
_ANSWERS = "answers"  # a folder that is there while images are scored


class PatientJudge(SharedJudge):
    """A judge that is asked again for as long as it cannot be reached.

    Args:
        patience: seconds without any answer after which it is given up (evaluation.judge_deadline).
        usage: as of `SharedJudge`.
    """

    def __init__(self, config: JudgeConfig, key: str, patience: float, usage: Path) -> None:
        super().__init__(config, key, usage=usage)
        self._patience = patience
        self._left = threading.Event()

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """As `Judge.ask`, but no answer is missing that may be had when asked again later.

        Raises:
            Stopped: the judge cannot be reached, or is closed meanwhile.
        """
        answers = super().ask(questions)
        end, round = time.monotonic() + self._patience, 0
        while lacking := [place for place, one in enumerate(answers) if _for_now(one)]:
            self._wait(answers[lacking[0]], len(lacking), pause_seconds(round, self._patience), end)
            again = super().ask([questions[place] for place in lacking])
            for place, answer in zip(lacking, again, strict=True):
                answers[place] = answer
            round += 1
            if sum(map(_for_now, again)) < len(lacking):  # it is back
                end, round = time.monotonic() + self._patience, 0
        return answers

    def close(self) -> None:
        self._left.set()
        super().close()

    def _wait(self, answer: Answer, lacking: int, pause: float, end: float) -> None:
        """Until the judge may be asked again."""
        left = end - time.monotonic()
        if left <= 0:
            raise Stopped(
                f"{self.key} cannot be reached, and {lacking} questions of the suite have no "
                f"answer ({answer.missing}); it was asked again for evaluation.judge_deadline, "
                f"{self._patience:g} s. What it answered is kept: start it, then resume"
            )
        logger.warning(
            "%s: %d questions of the suite have no answer for now (%s); asked again in %.3g s",
            *(self.key, lacking, answer.missing, min(pause, left)),
        )
        if self._left.wait(min(pause, left)):
            raise Stopped(f"{self.key} was closed while it was waited for; resume to go on")


def _for_now(answer: Answer) -> bool:
    return answer.missing is not None and answer.retryable


@dataclass(frozen=True)
class SuiteJudge:
    """A judge, by its name in the configuration; `is_reward` as `suite_rules.judge_is_reward`."""

    name: str
    model: str
    judge: SharedJudge
    is_reward: bool = False

    def p_yes(self, questions: Iterator[Question]) -> list[float | str]:
        """P(yes) in [0, 1] for every question, or the words why there is none.

        Raises:
            Stopped: there is none for any.
        """
        found: list[float | str] = []
        while chunk := list(islice(questions, ASKED_AT_ONCE)):
            for answer in self.judge.ask(chunk):
                number = answer.numbers.get("p_yes")
                missing = answer.missing or "the judge gave no number"
                found.append(missing if number is None else number)
        self.require_some([one if isinstance(one, str) else None for one in found])
        return found

    def require_some(self, missing: Sequence[str | None]) -> None:
        """Raise Stopped where every image lacks its score; `missing` says why, None where not."""
        if missing and all(missing):
            raise Stopped(f"judges.{self.name} answered no question of the suite: {missing[0]}")


@contextmanager
def suite_judge(
    config: RunConfig, judges: Mapping[str, JudgeConfig], folder: Path
) -> Iterator[SuiteJudge | None]:
    """The judge that the suite of a run asks, closed afterwards; None where it asks none.

    Args:
        judges: with the URLs of their servers. None is opened before it is asked.
        folder: of the stage, or of its evaluations. What is asked is counted there; the answers
            of a judge that has no place of its own for them (cache.folder) are there until
            everything is scored: who is ended before that goes on without asking twice.
    """
    name = config.evaluation.judge
    if name is None:
        yield None
        return
    answers = folder / _ANSWERS
    asked = _keeping(judges[name], answers)
    patience = config.evaluation.judge_deadline
    shared = PatientJudge(asked, f"judges.{name}", patience, folder / judge_usage.NAME)
    try:
        yield SuiteJudge(name, judges[name].model, shared, judge_is_reward(config))
    finally:
        shared.close()
    shutil.rmtree(answers, ignore_errors=True)


def _keeping(judge: JudgeConfig, answers: Path) -> JudgeConfig:
    """The judge, keeping its answers."""
    if judge.cache.folder is not None:
        return judge
    cache = judge.cache.model_copy(update={"folder": str(answers)})
    return judge.model_copy(update={"cache": cache})
