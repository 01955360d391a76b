"""What the loss is a mean of, with accumulation and on two ranks."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from atelier.algorithms.base import Advantages
from atelier.algorithms.grpo import Grpo
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Part, Replay, Rollout, Sample
from atelier.training.distributed import World
from atelier.training.loss_weights import Counts, LossWeights, counted, loss_weights
from tests.support.ranks import on_ranks

ALONE = World(0, 1, torch.device("cpu"))
LOG_PROB = torch.tensor([[-1.0, -0.5, -2.0, -1.5], [-0.7, -1.2, 0.0, 0.0]])
OLD = torch.tensor([[-1.1, -0.8, -1.8, -1.7], [-0.5, -0.8, 0.0, 0.0]])
MASK = torch.tensor([[True] * 4, [True, True, False, False]])
WHOLE = Advantages(torch.tensor([[1.0], [-1.0]]), torch.ones(2, dtype=torch.bool))
MOST = 8  # tokens that a sequence could have

GSPO = {"ratio_level": "sequence", "clip_range": 0.2}
GOLDEN = {
    "grpo": ({}, -0.135805),
    "clip-higher": ({"clip_range_high": 0.28}, -0.148480),
    "bnpo": ({"loss_mean": "micro_batch"}, -0.450862),
    "dapo": ({"loss_mean": "token"}, -0.450862),
    "dr_grpo": ({"loss_mean": "constant"}, -0.169073),
    "cispo": ({"surrogate": "cispo", "clip_range_high": 4, "loss_mean": "token"}, 0.645362),
    "sapo": ({"surrogate": "sapo"}, -0.235799),
    "gspo": (GSPO, -0.152585),
    "luspo": ({**GSPO, "loss_mean": "sum"}, -1.410342),
}
# Each sequence is a micro-batch of its own, and a mean over one is a mean over the other.
ACCUMULATED = {**{name: value for name, (_, value) in GOLDEN.items()}, "bnpo": -0.135805}


def written(rows: Sequence[int]) -> Rollout:
    """A micro-batch of some of the two sequences."""
    samples = [Sample(row, 0, Prompt(0, 0, "a")) for row in rows]
    images = np.zeros((len(rows), 1, 1, 3), np.uint8)
    mask, old = MASK[list(rows)], OLD[list(rows)]
    return Rollout(samples, 4, old, images, {"rows": rows}, longest=(MOST,), mask=mask)


def loss_of(name: str, world: World, batches: Sequence[Sequence[int]], **own) -> float:
    """The part that these micro-batches, this rank's, have in the loss of an update."""
    settings, _ = GOLDEN[name]
    config = RunConfig.model_validate({"policy": {"family": "janus"}, "algorithm": settings})
    algorithm, part, total = Grpo.of(config), Part(slice(0, 4)), 0.0
    rollouts, rows = [written(batch) for batch in batches], [torch.tensor(b) for b in batches]
    mean = config.algorithm.loss_mean
    weights = loss_weights(mean, [WHOLE], rollouts, rows, world, **own)
    for rollout, row in zip(rollouts, rows, strict=True):
        replay = Replay(LOG_PROB[row])
        trained, relative = rollout.trained(part), WHOLE.of(row, part.actions)
        terms = algorithm.loss(replay, OLD[row], relative, trained=trained)
        total += float((terms.loss * weights.of(rollout, row, part)).sum())
    return total


def half(world: World) -> dict[str, float]:
    """A rank's part of every loss, where each has one of the sequences."""
    return {name: loss_of(name, world, [[world.rank]]) for name in GOLDEN}


@functools.cache
def on_two_ranks() -> list[dict[str, float]]:
    return on_ranks(half, 2)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_losses(name: str) -> None:
    assert loss_of(name, ALONE, [[0, 1]]) == pytest.approx(GOLDEN[name][1], abs=1e-6)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_losses_accumulated(name: str) -> None:
    assert loss_of(name, ALONE, [[0], [1]]) == pytest.approx(ACCUMULATED[name], abs=1e-6)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_losses_of_two_ranks(name: str) -> None:
    parts = [part[name] for part in on_two_ranks()]
    assert sum(parts) == pytest.approx(ACCUMULATED[name], abs=1e-6)
    assert min(map(abs, parts)) > 0


def test_in_every_update_of_a_step_a_token_weighs_the_same() -> None:
    """Of two updates, a sequence each, the mean is that of all tokens at once."""
    batches = [written([0]), written([1])]
    step = counted([WHOLE], batches, [torch.tensor([0]), torch.tensor([1])], ALONE)
    losses = [loss_of("dapo", ALONE, [[row]], step=step, updates=2) for row in (0, 1)]
    assert sum(losses) / 2 == pytest.approx(GOLDEN["dapo"][1], abs=1e-6)
    alone = [loss_of("dapo", ALONE, [[row]]) for row in (0, 1)]
    assert sum(alone) / 2 == pytest.approx(GOLDEN["grpo"][1], abs=1e-6)  # that of another method


@pytest.mark.parametrize("name", GOLDEN)
def test_what_is_watched_is_a_mean_for_any_mean_of_the_loss(name: str) -> None:
    mean = RunConfig.model_validate({"algorithm": GOLDEN[name][0]}).algorithm.loss_mean
    part = Part(slice(0, 4))
    for batches in ([[0, 1]], [[0], [1]]):
        rollouts = [written(batch).without_truncated() for batch in batches]
        rows = [torch.tensor(batch) for batch in batches]
        weights = loss_weights(mean, [WHOLE], rollouts, rows, ALONE)
        shares = [weights.shares(one, row, part) for one, row in zip(rollouts, rows, strict=True)]
        assert sum(float(one.sum()) for one in shares) == pytest.approx(1)


# What was cut off ----------------------------------------------------------------------------


def cut(ended: Sequence[bool]) -> Rollout:
    rollout = written([0, 1])
    own = torch.tensor(ended)[:, None]
    return Rollout(**{**vars(rollout), "ended": own}).without_truncated()


def weights_of(mean: str, rollout: Rollout) -> LossWeights:
    return loss_weights(mean, [WHOLE], [rollout], [torch.tensor([0, 1])], ALONE)


@pytest.mark.parametrize(
    ("mean", "each"),
    [("sequence", 1 / 4), ("micro_batch", 1 / 2), ("token", 1 / 2), ("constant", 1 / 16),
     ("sum", 1 / 2)],
)  # fmt: skip
def test_what_was_cut_off_weighs_nothing(mean: str, each: float) -> None:
    """The first of the two has no end: of tokens two are left, of samples both are counted."""
    rollout, part, rows = cut([False, True]), Part(slice(0, 4)), torch.tensor([0, 1])
    weights = weights_of(mean, rollout)
    wanted = torch.tensor([[0.0] * 4, [each, each, 0.0, 0.0]])
    assert torch.allclose(weights.of(rollout, rows, part), wanted)
    assert float(weights.shares(rollout, rows, part).sum()) == pytest.approx(1)
    assert not weights.nothing_kept


def test_where_all_was_cut_off_there_is_nothing_to_learn() -> None:
    assert weights_of("sequence", cut([False, False])).nothing_kept
    assert not weights_of("sequence", cut([True, True])).nothing_kept


def test_a_sample_that_is_not_compared_is_not_counted() -> None:
    kept = Advantages(WHOLE.values, torch.tensor([False, True]))
    rows = torch.tensor([0, 1])
    found = counted([kept], [written([0, 1])], [rows], ALONE)
    assert found == Counts(samples=[1.0], acting=[1.0], actions=[2.0], micro_batches=[1.0])
    found = counted([kept], [written([0]), written([1])], [rows[:1], rows[1:]], ALONE)
    assert found.micro_batches == [1.0]
