"""The judge that a suite asks."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from atelier.config.judge import JudgeConfig
from atelier.config.schema import RunConfig
from atelier.config.suite_rules import judge_is_reward
from atelier.errors import Stopped
from atelier.judge.questions import Question
from atelier.rewards.scorers.judges import SharedJudge

ASKED_AT_ONCE = 64  # questions hold their images


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
    config: RunConfig, judges: Mapping[str, JudgeConfig], answers: Path
) -> Iterator[SuiteJudge | None]:
    """The judge that the suite of a run asks, closed afterwards; None where it asks none.

    Args:
        judges: with the URLs of their servers. None is opened before it is asked.
        answers: folder for the answers of a judge that has none of its own (cache.folder), removed
            when everything is scored. Who is killed before that goes on without asking twice.
    """
    name = config.evaluation.judge
    if name is None:
        yield None
        return
    shared = SharedJudge(_keeping(judges[name], answers), f"judges.{name}")
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
