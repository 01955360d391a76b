"""Samples of a micro-batch whose windows may differ: rows with the same window are a part.

The model sees the whole micro-batch at once, in the rollout and in the replay; only the arithmetic
of a transition is done part by part. Where all share a window there is one part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from atelier.dynamics.windows import Window
from atelier.policies.base import Replay
from atelier.transfer import to_device


class Part(NamedTuple):
    """Rows of a micro-batch, and their window.

    Attributes:
        rows: all of them, an open slice, or their places on the latents' device.
        numbers: the same places, where they are not all, so that a device need not be asked.
    """

    rows: slice | Tensor
    window: Window
    numbers: tuple[int, ...] = ()

    @property
    def places(self) -> tuple[int, ...]:
        """Where the latent before each step is among those that are kept, the one behind the step
        coming next. A latent between two steps of the window is kept once."""
        gaps = accumulate((later > step + 1 for step, later in pairwise(self.window)), initial=0)
        return tuple(action + gap for action, gap in enumerate(gaps))

    @property
    def kept(self) -> int:
        """Latents that are kept of a sample."""
        return self.places[-1] + 2


def parts_by_window(windows: Sequence[Window], device: torch.device) -> list[Part]:
    """One part for every window there is, in the order of their first rows.

    Raises:
        ValueError: windows of different lengths, which have no common number of actions, or with
            gaps in different places, whose latents are not kept in the same.
    """
    if len({Part(slice(None), window).places for window in windows}) > 1:
        raise ValueError("windows of one micro-batch have different lengths or gaps")
    distinct = list(dict.fromkeys(windows))
    if len(distinct) == 1:
        return [Part(slice(None), distinct[0])]
    return [_part(window, windows, device) for window in distinct]


def _part(window: Window, windows: Sequence[Window], device: torch.device) -> Part:
    numbers = tuple(row for row, one in enumerate(windows) if one == window)
    return Part(to_device(torch.tensor(numbers), device), window, numbers)


def at_steps(values: Tensor, parts: Sequence[Part], action: int) -> Tensor:
    """Of `values`, one a denoising step, those of every row's action: [B], or [1] where all rows
    share theirs."""
    if len(parts) == 1:
        step = parts[0].window[action]
        return values[step : step + 1]
    step_of = {row: part.window[action] for part in parts for row in part.numbers}
    steps = torch.tensor([step_of[row] for row in sorted(step_of)])
    return values[to_device(steps, values.device)]


def merged(replays: Sequence[Replay], parts: Sequence[Part]) -> Replay:
    """The replay of a micro-batch from those of its parts."""
    if len(replays) == 1:
        return replays[0]
    order = [row for part in parts for row in part.numbers]
    places = torch.tensor(order).argsort()  # of each row, among those of all parts

    def join(values: Sequence[Tensor]) -> Tensor:
        rows = [
            value.expand(len(part.numbers), *value.shape[1:])
            for value, part in zip(values, parts, strict=True)
        ]
        return torch.cat(rows)[to_device(places, values[0].device)]

    names = replays[0].statistics
    weights = [one.weight for one in replays if one.weight is not None]
    return Replay(
        join([one.log_prob for one in replays if one.log_prob is not None]),
        {name: join([one.statistics[name] for one in replays]) for name in names},
        join(weights) if weights else None,
    )
