"""Rewards of one's own: a function or a class, named by `rewards.custom.NAME.function`.

A function is called as f(images, prompts, metadata, **parameters) and gives a sequence with a
number an image; None or NaN where there is none; (number, details) where it has seen something.
A class is made as C(**parameters) and is a `Scorer` (base.py).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from atelier.config.custom_rewards import function_problem
from atelier.config.paths import repository_root
from atelier.config.rewards import CustomRewardConfig
from atelier.errors import ConfigError
from atelier.rewards.base import Direction, Missing, Score, ScoreBatch, Scorer, Scores

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
        self.version = getattr(function, "version", None) or _hash_of(function, config.function)
        self._function, self._parameters = function, config.parameters
        self._golden: Callable[[], Golden] | None = getattr(function, "golden", None)

    def score(self, batch: ScoreBatch) -> Scores:
        if not len(batch):
            return Scores(self.name, [])
        found = self._function(batch.images, batch.prompts, batch.metadata, **self._parameters)
        taken = [_taken(one) for one in found]
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
    found = _imported(config.function, f"{key}.function")
    try:
        if isinstance(found, type):
            scorer: Any = found(**config.parameters)
        else:
            inspect.signature(found).bind([], [], [], **config.parameters)
            scorer = FunctionScorer(name, found, config)
    except TypeError as error:
        raise ConfigError(f"{key}.parameters: {config.function}: {error}") from error
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


def _imported(function: str, key: str) -> Any:
    if problem := function_problem(function):
        raise ConfigError(f"{key}: {problem}")
    root = str(repository_root())
    if root not in sys.path:
        sys.path.insert(0, root)
    module, _, name = function.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever a module of the user's raises when it is imported
        raise ConfigError(
            f"{key}: {module} cannot be imported: {type(error).__name__}: {error}. Packages that "
            "only the score needs are best imported where it is made"
        ) from error
    if not callable(found):
        raise ConfigError(f"{key}: {module} has no function or class {name}")
    return found


def _require_sound(key: str, scorer: Any) -> None:
    if scorer.direction not in get_args(Direction):
        raise ConfigError(
            f"{key}.function: its direction is {scorer.direction!r}, not one of "
            f"{', '.join(get_args(Direction))}"
        )
    low, high = scorer.value_range
    if not low < high:
        raise ConfigError(f"{key}.function: its value_range is ({low}, {high}), not low to high")


def _taken(given: Any) -> tuple[Score, Mapping[str, Any]]:
    """What a function gave for one image, as score and details."""
    value, seen = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if value is None:
        return Missing("the function gave no score"), seen
    return value, seen


def _hash_of(function: Callable[..., Any], name: str) -> str:
    """A version for a function that has none: of the file that it is in."""
    source = inspect.getsourcefile(inspect.unwrap(function))
    text = Path(source).read_bytes() if source is not None else name.encode()
    return f"{name}@{hashlib.sha256(text).hexdigest()[:12]}"
