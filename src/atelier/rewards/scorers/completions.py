"""Rewards `format` and `length`: of a completion, the text that a policy wrote for an image.

It is `metadata["completion"]`; an image without one has no score.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regex
from PIL import Image

from atelier.config.sections.rewards import FormatConfig, LengthConfig
from atelier.rewards.base import Direction, Missing, Score, ScoreBatch, Scores

_MATCH_SECONDS = 1.0  # of one completion
_BUDGETS = (_MATCH_SECONDS, 4 * _MATCH_SECONDS, 16 * _MATCH_SECONDS)
_LONGEST_GOLDEN = 1000


class CompletionScorer(ABC):
    """A score in [0, 1] of a completion."""

    name: str
    direction: Direction = "higher_is_better"
    value_range = (0.0, 1.0)
    version = "1"

    def score(self, batch: ScoreBatch) -> Scores:
        return Scores(self.name, [self._score(metadata) for metadata in batch.metadata])

    def weights(self) -> Sequence[Path]:
        return ()

    @abstractmethod
    def of(self, completion: str) -> Score:
        """The score of a completion."""

    @abstractmethod
    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]: ...

    def _score(self, metadata: Mapping[str, Any]) -> Score:
        completion = metadata.get("completion")
        if not isinstance(completion, str):
            return Missing("the image has no completion in its metadata")
        return self.of(completion)


class FormatScorer(CompletionScorer):
    """1 where the whole completion matches the pattern, else 0.

    By `regex` and not `re`: a pattern that is slow for a completion would hold all threads of the
    process for as long as it takes, and nothing could stop it.
    """

    name = "format"
    version = "2"

    def __init__(self, config: FormatConfig) -> None:
        self._default = config.pattern == FormatConfig.model_fields["pattern"].default
        self._pattern = regex.compile(config.pattern)

    def of(self, completion: str) -> Score:
        try:
            return float(self._matches(completion))
        except TimeoutError:
            return Missing(f"the pattern took longer than {_MATCH_SECONDS:g} s")
        except MemoryError:
            return Missing("the pattern took more memory than there is")

    def _matches(self, completion: str) -> bool:
        """Whether it does; raises TimeoutError.

        `timeout` is processor time of the whole process, of which busy threads beside this one take
        their part: until the second has nearly passed, the match is given more.
        """
        started = time.monotonic()
        for budget in _BUDGETS:
            try:
                found = self._pattern.fullmatch(completion, concurrent=True, timeout=budget)
            except TimeoutError:
                if time.monotonic() - started >= 0.9 * _MATCH_SECONDS:
                    break
            else:
                return found is not None
        raise TimeoutError

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """Right and wrong by the default pattern; of a pattern of yours nothing is known."""
        if not self._default:
            return _batch([]), [], 0.0
        right = "<think>round and red</think>\n<answer>a red circle</answer>"
        return _batch([right, f"So: {right}"]), [1.0, 0.0], 0.0


class LengthScorer(CompletionScorer):
    """1 from `shortest` to `longest`, falling evenly to 0 within `fall_off` on either side."""

    name = "length"

    def __init__(self, config: LengthConfig) -> None:
        self.config = config

    def of(self, completion: str) -> float:
        words = self.config.unit == "words"
        return self.of_length(len(completion.split()) if words else len(completion))

    def of_length(self, length: int) -> float:
        """The score of so many words or characters."""
        beyond = max(self.config.shortest - length, length - self.config.longest, 0)
        return max(0.0, 1.0 - beyond / self.config.fall_off)

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """As long as is right at most, and too long by far; or shorter, where that is endless."""
        unit = "a " if self.config.unit == "words" else "a"
        right = self.config.longest
        wrong = right + math.ceil(self.config.fall_off)
        lengths = [min(length, _LONGEST_GOLDEN) for length in (right, wrong)]
        expected = [self.of_length(length) for length in lengths]
        return _batch([unit * length for length in lengths]), expected, 1e-6


def _batch(completions: Sequence[str]) -> ScoreBatch:
    count = len(completions)
    metadata = [{"completion": one} for one in completions]
    images = [Image.new("RGB", (8, 8))] * count
    return ScoreBatch(images, [""] * count, metadata, list(range(count)))
