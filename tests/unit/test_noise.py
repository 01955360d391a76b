"""Noise is a function of its keys, whoever draws it and when; and what is asked for is expected."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Part, Sample
from atelier.policies.flow import noise as module
from atelier.policies.flow.noise import Noise, Request
from atelier.policies.sd3.policy import SD3Policy
from tests.support.runs import untrained_pipeline

CPU = torch.device("cpu")
SHAPE = (3, 4, 4)
REQUESTS = [Request((7, 2**64 - 1, 0), 2), Request((5,)), Request((7, 8), 3), Request((9,))]
BATCHES = [
    [Sample(i, i // 2, Prompt(i // 2, 0, "a circle")) for i in (start, start + 1, start + 2)]
    for start in (0, 3)
]


def expected(request: Request) -> Tensor:
    shape = (request.draws, *SHAPE)
    made = [torch.randn(shape, generator=torch.Generator().manual_seed(k)) for k in request.keys]
    return torch.stack(made)


@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (3, 0), (1, 1), (2, 2)])
def test_numbers_are_those_of_the_keys(threads: int, ahead: int) -> None:
    noise = Noise(SHAPE, CPU, threads, ahead)
    noise.expect(REQUESTS)
    for request in [REQUESTS[0], REQUESTS[2], Request((11,)), *REQUESTS[1:]]:
        assert torch.equal(noise(request), expected(request))


class Counted:
    """Keys that were drawn, and a way to wait for so many."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self._changed = threading.Condition()

    def fill(self, row: Tensor, key: int) -> None:
        with self._changed:
            self.keys.append(key)
            self._changed.notify_all()

    def wait_for(self, keys: Sequence[int]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.keys) >= len(keys), timeout=60)
        assert self.keys == list(keys)


@pytest.fixture(name="counted")
def _counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(module, "fill", counted.fill)
    return counted


def test_what_is_expected_is_drawn_before_it_is_asked_for(counted: Counted) -> None:
    noise = Noise(SHAPE, CPU, threads=1, ahead=2)
    noise.expect(REQUESTS)
    drawn = [*REQUESTS[0].keys, *REQUESTS[1].keys]
    counted.wait_for(drawn)
    noise(REQUESTS[0])
    counted.wait_for([*drawn, *REQUESTS[2].keys])
    noise(REQUESTS[1])
    noise(REQUESTS[2])
    noise(REQUESTS[3])
    counted.wait_for([*drawn, *REQUESTS[2].keys, *REQUESTS[3].keys])


def test_expecting_the_rest_anew_draws_nothing_twice(counted: Counted) -> None:
    noise = Noise(SHAPE, CPU, threads=1, ahead=2)
    for first in range(len(REQUESTS)):
        noise.expect(REQUESTS[first:])
        noise(REQUESTS[first])
    counted.wait_for([key for one in REQUESTS for key in one.keys])


def test_nothing_is_drawn_before_where_nobody_draws_ahead(counted: Counted) -> None:
    noise = Noise(SHAPE, CPU, threads=2)
    noise.expect(REQUESTS)
    noise(REQUESTS[3])
    assert counted.keys == [9]


def test_an_error_of_a_thread_is_that_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(row: Tensor, key: int) -> None:
        raise MemoryError("no room for noise")

    monkeypatch.setattr(module, "fill", fill)
    noise = Noise(SHAPE, CPU, threads=2, ahead=1)
    noise.expect(REQUESTS)
    with pytest.raises(MemoryError, match="no room for noise"):
        noise(REQUESTS[0])


# What rollouts ask for -------------------------------------------------------------------------

KINDS = {
    "steps": {},
    "all": {"window": {"strategy": "all"}},
    "shared": {"shared_start": True, "window": {"scope": "group", "size": 2}},
    "levels": {"dynamics": "ode"},
}


def policy_of(kind: str) -> SD3Policy:
    torch.set_num_threads(1)
    rollout = {"num_inference_steps": 4, "noise_level": 0.8, **KINDS[kind]}
    nft = {"name": "nft", "clip_range": None}
    sections = {
        "policy": {"path": str(untrained_pipeline()), "max_sequence_length": 16},
        "rollout": rollout,
        "algorithm": nft if kind == "levels" else {},
    }
    made = SD3Policy.load(RunConfig.model_validate(sections), "cpu")
    made.begin_step(1)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_ask_for_what_was_expected(kind: str) -> None:
    policy, plain = policy_of(kind), policy_of(kind)
    asked, told = [], []
    draw = Noise(policy._noise._shape, CPU, threads=2, ahead=2)
    policy._noise = lambda request: (asked.append(request), draw(request))[1]  # type: ignore
    policy.expect_noise = lambda requests: (told.append(requests), draw.expect(requests))  # type: ignore
    policy.expect_rollouts(BATCHES)
    for batch in BATCHES:
        rollout = policy.rollout(policy.module, batch)
        expected = plain.rollout(plain.module, batch)
        assert (rollout.images == expected.images).all()
    assert asked == told[0]
    if kind != "levels":
        return
    asked.clear()
    for action in range(rollout.actions):
        part = Part(slice(action, action + 1))
        replay = policy.replay(policy.module, rollout, part, with_reference=False)
        found = plain.replay(plain.module, expected, part, with_reference=False)
        for name, value in found.statistics.items():
            assert torch.equal(replay.statistics[name], value), name
        assert asked[action:] == told[1 + action][:1]
    assert asked == told[1], "the first replay expects all that follow"
