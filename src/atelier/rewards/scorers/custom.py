"""Rewards of one's own: a function or a class, named by `rewards.custom.NAME.function`.

A function is called as f(images, prompts, metadata, **parameters) and gives a sequence with a
number an image; None or NaN where there is none; (number, details) where it has seen something.
A class is made as C(**parameters) and is a `Scorer` (base.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from atelier.config.sections.rewards import CustomRewardConfig
from atelier.errors import ConfigError
from atelier.rewards.base import Direction, Missing, Score, ScoreBatch, Scorer, Scores
from atelier.rewards.checks import listed
from atelier.rewards.scorers.functions import file_version, imported, require_call

Golden = tuple[ScoreBatch, Sequence[float], float]
Function = TypeVar("Function", bound=Callable[..., Any])

SCORER_PARTS = ("direction", "value_range", "version", "score", "weights", "golden")


def reward(
    *,
    direction: Direction = "higher_is_better",
    value_range: tuple[float, float] = (-math.inf, math.inf),
    version: str | None = None,
    golden: Callable[[], Golden] | None = None,
) -> Callable[[Function], Function]:
    """Say of a function what its scores are; a plain function is a reward without it, too.

    Args:
        direction: whether a higher score is better.
        value_range: least and greatest score; others are not taken from a service.
        version: to be raised when scores change; default: a hash of the function's file.
        golden: gives a batch, its scores and the tolerance: proves the reward before a run.
    """

    def declared(function: Function) -> Function:
        told: dict[str, Any] = {"direction": direction, "value_range": value_range}
        if version is not None:
            told["version"] = version
        if golden is not None:
            told["golden"] = golden
        for name, value in told.items():
            setattr(function, name, value)
        return function

    return declared


class FunctionScorer:
    """A function as a scorer."""

    def __init__(
        self, name: str, function: Callable[..., Sequence[Any]], config: CustomRewardConfig
    ) -> None:
        self.name = name
        self.direction: Direction = getattr(function, "direction", "higher_is_better")
        self.value_range: tuple[float, float] = getattr(
            function, "value_range", (-math.inf, math.inf)
        )
        self.version = getattr(function, "version", None) or file_version(function, config.function)
        self._function, self._parameters = function, config.parameters
        self._golden: Callable[[], Golden] | None = getattr(function, "golden", None)

    def score(self, batch: ScoreBatch) -> Scores:
        if not len(batch):
            return Scores(self.name, [])
        found = self._function(batch.images, batch.prompts, batch.metadata, **self._parameters)
        taken = [_taken(one) for one in listed(found, len(batch))]
        return Scores(self.name, [score for score, _ in taken], [seen for _, seen in taken])

    def weights(self) -> Sequence[Path]:
        return ()

    def golden(self) -> Golden:
        """The function's own; without one nothing is scored, hence nothing proved."""
        return self._golden() if self._golden is not None else (ScoreBatch([], [], [], []), [], 0.0)


def custom_scorer(name: str, config: CustomRewardConfig) -> Scorer:
    """The scorer that `rewards.custom.NAME` describes. Imports its module and scores nothing.

    Raises:
        ConfigError: it cannot be imported, is no function or class of this kind, or does not take
            the parameters.
    """
    key = f"rewards.custom.{name}"
    found = imported(config.function, f"{key}.function")
    scorer: Any
    if isinstance(found, type):
        require_call(found, 0, config.parameters, f"{key}.parameters")
        scorer = found(**config.parameters)
    else:
        require_call(found, 3, config.parameters, f"{key}.parameters")
        scorer = FunctionScorer(name, found, config)
    lacking = [part for part in SCORER_PARTS if not hasattr(scorer, part)]
    if lacking:
        raise ConfigError(
            f"{key}.function: {config.function} has no {', '.join(lacking)}; a class needs what "
            "atelier.rewards.Scorer has"
        )
    _require_sound(key, scorer)
    scorer.name = name
    made: Scorer = scorer
    return made


def _require_sound(key: str, scorer: Any) -> None:
    if scorer.direction not in get_args(Direction):
        raise ConfigError(
            f"{key}.function: its direction is {scorer.direction!r}, not one of "
            f"{', '.join(get_args(Direction))}"
        )
    if not isinstance(scorer.version, str):
        raise ConfigError(f"{key}.function: its version is {scorer.version!r}, not a text")
    low, high = scorer.value_range
    if not low < high:
        raise ConfigError(f"{key}.function: its value_range is ({low}, {high}), not low to high")


def _taken(given: Any) -> tuple[Score, Any]:
    """What a function gave for one image, as score and details, which may be anything."""
    value, seen = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if value is None:
        return Missing("the function gave no score"), seen
    return value, seen
