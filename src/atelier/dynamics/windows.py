"""Which denoising steps of a rollout are stochastic and trained.

A window is a function of the configuration, the seed and the training step, so it needs no state in
a checkpoint and every rank can know every other's. By default all samples of a step share it:
windows that differ inside a group turn a step's difficulty into reward noise, and a window fixed
for a whole run trains two steps of ten.

The last transition is not stochastic unless `include_last` says so: its std is 0 (cps) or so small
that the log-probability blows up (flow_sde). No window is empty: where MixGRPO's
would be, it goes back to the start (roll_back) or stays on the last step it may have.

The steps of `fraction` lie anywhere, not side by side.
"""

from __future__ import annotations

import math
import random

from atelier.config.sections.rollout import WindowConfig
from atelier.data.keys import key

EXPONENTIAL_RATE, EXPONENTIAL_FROM = 0.1, 13  # of exp_decay, as published

Window = tuple[int, ...]
"""Indices of denoising steps, ascending."""


def draw_window(
    config: WindowConfig, num_steps: int, seed: int, step: int, group: int = 0, rank: int = 0
) -> Window:
    """The stochastic steps of training step `step` (from 1): never empty, in [0, num_steps).

    Args:
        group, rank: whose window; they matter where config.scope says so.
    """
    low, high = config.bounds(num_steps)
    if config.strategy == "all":
        return tuple(range(low, high))
    if config.strategy == "fraction":
        draw = random.Random(key("fraction", seed, step))
        return tuple(sorted(draw.sample(range(low, high), config.longest(num_steps))))
    if not config.moves:
        owner = {"step": (), "group": ("group", group), "rank": ("rank", rank)}[config.scope]
        draw = random.Random(key("window", seed, step, *owner))
        start = draw.randint(low, high - config.size)
    else:
        start = moving_start(config, low, high, step)
    return tuple(range(start, min(start + config.size, high)))


def moving_start(config: WindowConfig, low: int, high: int, step: int) -> int:
    """Where a window that moves on every `interval` steps begins at training step `step`."""
    start, begun = low, 1
    while True:
        length = interval(config, start - low, high - low)
        if begun + length > step:
            return start
        begun += length
        start += config.stride if config.stride is not None else config.size
        if start >= high:
            start = low if config.roll_back else high - 1


def interval(config: WindowConfig, start: int, last: int) -> int:
    """Training steps a window stays at `start`, of `last` steps it may reach."""
    longest, shortest = config.steps_per_window, config.fewest_steps_per_window
    if config.strategy == "decay":
        share = start / last
        return max(shortest, int(longest * (1 - share) + shortest * share))
    if config.strategy == "exp_decay":
        return math.ceil(longest * math.exp(-EXPONENTIAL_RATE * max(0, start - EXPONENTIAL_FROM)))
    return longest
