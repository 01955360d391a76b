"""Rewards that ask a judge: what they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL.Image import Image

from atelier.config.sections.rewards import JudgedSection
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject
from atelier.judge.questions import Answer
from atelier.rewards.base import Direction, Missing, ScoreBatch, Scores
from atelier.rewards.scorers.judge_files import weight_files
from atelier.rewards.scorers.judges import SharedJudge


class JudgedScorer(ABC):
    """A reward whose scores come from a judge's answers.

    `revision` is raised when questions, parsing or formula change: scores do not compare then.
    """

    name: str
    revision: ClassVar[int] = 1
    direction: Direction = "higher_is_better"
    value_range: tuple[float, float] = (0.0, 1.0)

    def __init__(self, config: JudgedSection, judge: SharedJudge) -> None:
        self.judge = judge

    @property
    def version(self) -> str:
        return f"{self.name}-{self.revision}/{self.judge.config.model}"

    def weights(self) -> Sequence[Path]:
        """Those of a judge in this process; a judge's server says itself what it serves.

        Raises:
            ConfigError: they are not on this machine.
        """
        config = self.judge.config
        return weight_files(config.model) if config.placement == "in_process" else ()

    @abstractmethod
    def score(self, batch: ScoreBatch) -> Scores: ...

    @abstractmethod
    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]: ...

    def rest(self, is_main: bool) -> None:
        self.judge.rest(is_main)

    def close(self) -> None:
        self.judge.close()


def missing(answer: Answer) -> Missing:
    """A missing answer as a missing score."""
    return Missing(answer.missing or "the judge gave no number", answer.retryable)


def words(answer: Answer) -> list[str]:
    """What the judge said, word for word, one text a measurement."""
    return [reply.text for reply in answer.replies]


def detail(answer: Answer, **more: Any) -> dict[str, Any]:
    """What is kept of an answer beside the score."""
    return {"judge": words(answer), **answer.numbers, **more}


def red_circle(size: int = 64) -> Image:
    """A picture that every judge, small or large, can say something about."""
    return render(Scene(objects=(SceneObject("circle", "red", (1, 1)),)), size=size)
