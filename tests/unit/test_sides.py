"""Sides of ranks, packets between them, and what one side tells the other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from atelier.config.sections.launch import LaunchConfig, Shares
from atelier.errors import Stopped
from atelier.training.distributed import World
from atelier.training.exchange import exchange
from atelier.training.sides import take_sides
from tests.support.ranks import on_ranks

RECEIVERS = {0: 2, 3: 1, 5: 2, 6: 0, 8: 1}
OF_RANK = ([5, 3], [0, 6], [8])


def packet(number: int) -> dict[str, torch.Tensor]:
    """Of a shape of its own, in several types."""
    values = torch.arange(number + 1.0).expand(2, -1)
    return {"noise": values + number, "steps": values.long().T, "half": values.bfloat16()[:1]}


def as_lists(packets: Mapping[int, Mapping[str, torch.Tensor]]) -> dict[int, dict[str, object]]:
    return {
        number: {name: (str(value.dtype), value.tolist()) for name, value in one.items()}
        for number, one in packets.items()
    }


def sent(world: World) -> dict[int, dict[str, object]]:
    """Ranks 1 and 2 get from both others, rank 0 from one."""
    mine = {number: packet(number) for number in OF_RANK[world.rank]}
    first = exchange(world, mine, RECEIVERS)
    again = exchange(world, mine, RECEIVERS)
    assert as_lists(first) == as_lists(again)
    return as_lists(first)


def test_packets_come_to_whom_they_are_for_and_nowhere_else() -> None:
    for rank, arrived in enumerate(on_ranks(sent, 3)):
        expected = {number: packet(number) for number, to in RECEIVERS.items() if to == rank}
        assert arrived == as_lists(expected)


def sided(world: World) -> dict[str, object]:
    sides = take_sides(world, LaunchConfig(processes=3, rollout_processes=2))
    assert sides.apart
    return {
        "does": (sides.samples, sides.trains),
        "peer": (sides.peers.rank, sides.peers.size),
        "peers": sides.peers.gather(world.rank),
        "training": list(sides.training),
        "asks first": sides.asks_first,
    }


def test_the_last_ranks_sample_and_talk_among_themselves() -> None:
    trains, first, second = on_ranks(sided, 3)
    all_know = {"training": [0], "asks first": False}
    assert trains == {**all_know, "does": (False, True), "peer": (0, 1), "peers": [0]}
    own = {**all_know, "does": (True, False), "peers": [1, 2]}
    assert first == {**own, "peer": (0, 2), "asks first": True}
    assert second == {**own, "peer": (1, 2)}


def test_without_the_key_every_rank_does_both() -> None:
    world = World(1, 4, torch.device("cpu"))
    sides = take_sides(world, LaunchConfig(processes=4))
    assert (sides.everyone, sides.peers, sides.apart) == (world, world, False)
    assert list(sides.training) == [0, 1, 2, 3]
    assert LaunchConfig().shares(4) == Shares(sampling=4, training=4)
    assert LaunchConfig(rollout_processes=1).shares(4) == Shares(sampling=1, training=3)


def stopped(world: World) -> str:
    world.raise_together(None)
    try:
        world.raise_together(Stopped("no more") if world.rank == 1 else None)
    except Stopped as why:
        return str(why)
    return "went on"


def test_what_stops_a_rank_stops_all() -> None:
    assert on_ranks(stopped, 2) == ["no more", "no more"]


def failed(world: World) -> str:
    try:
        with world.failing_together():
            if world.rank == 0:
                raise Stopped("no number")
        return "went on"
    except Stopped as why:
        return str(why)


def test_what_a_rank_cannot_do_all_raise_behind_it() -> None:
    assert on_ranks(failed, 2) == ["no number", "no number"]


def test_alone_it_raises_its_own() -> None:
    alone = World(0, 1, torch.device("cpu"))
    alone.raise_together(None)
    with pytest.raises(Stopped, match="mine"):
        alone.raise_together(Stopped("mine"))
    with pytest.raises(ZeroDivisionError), alone.failing_together():
        _ = 1 / 0
