"""Numbers that no run can use are refused with the key, not met by float32 hours later."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.sections.servers import Placed
from atelier.errors import ConfigError

SECTIONS = ("rollout", "algorithm", "train", "evaluation")


def floats(section: type[BaseModel], path: str) -> Iterator[str]:
    """Keys of a section, and of those in it, that are a float or nothing; how long servers are
    waited for is no number that is computed with."""
    if issubclass(section, Placed):
        return
    for name, info in section.model_fields.items():
        kinds = get_args(info.annotation) or (info.annotation,)
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from floats(info.annotation, f"{path}.{name}")
        elif float in kinds or any(float in get_args(kind) for kind in kinds):
            yield f"{path}.{name}"


KEYS = [
    key
    for name in SECTIONS
    for key in floats(RunConfig.model_fields[name].annotation, name)  # type: ignore[arg-type]
]


def test_the_keys_are_found() -> None:
    assert {"algorithm.beta", "algorithm.sapo.temperature_positive", "algorithm.clip_delta"} <= {
        *KEYS
    }


@pytest.mark.parametrize("key", KEYS)
def test_no_number_is_boundless(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        resolve("tiny/flow-grpo", [f"{key}=1e300"], Path(os.devnull))


@pytest.mark.parametrize(
    "key",
    [
        "rollout.tokens.temperature",
        "rollout.tokens.top_p",
        "rollout.completion.temperature",
        "rollout.completion.top_p",
        "rollout.introspection.answer_temperature",
        "algorithm.sapo.temperature_positive",
        "algorithm.sapo.temperature_negative",
        "algorithm.nft.strength",
        "algorithm.clip_range",
        "algorithm.clip_range_high",
        "algorithm.clip_delta",
        "algorithm.advantage_clip",
        "train.adam_epsilon",
        "train.max_grad_norm",
    ],
)
def test_what_is_divided_by_or_bounds_is_not_next_to_0(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        resolve("tiny/flow-grpo", [f"{key}=1e-300"], Path(os.devnull))


def test_an_answer_has_room_for_its_end() -> None:
    key = "rollout.introspection.answer_tokens"
    with pytest.raises(ConfigError, match=key):
        resolve("tiny-janus/introspective-v1", [f"{key}=1"], Path(os.devnull))


@pytest.mark.parametrize(("likeliest", "warned"), [(0, False), (1, True), (2, False)])
def test_what_cannot_vary_is_warned_of(likeliest: int, warned: bool) -> None:
    override = f"rollout.tokens.top_k={likeliest}"
    found = plan(resolve("tiny-janus/grpo", [override], Path(os.devnull))).warnings
    assert any(one.startswith("rollout.tokens.top_k: 1 draws") for one in found) == warned
