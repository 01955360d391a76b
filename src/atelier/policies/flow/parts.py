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


class Part(NamedTuple):
    """Rows of a micro-batch (all of them: an open slice), and their window."""

    rows: slice | Tensor
    window: Window

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


def parts_by_window(windows: Sequence[Window]) -> list[Part]:
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
    return [
        Part(torch.tensor([row for row, one in enumerate(windows) if one == window]), window)
        for window in distinct
    ]


def step_indices(parts: Sequence[Part], action: int) -> Tensor:
    """The denoising step of every row's action: [B], or [1] where all rows share it."""
    steps = torch.tensor([window[action] for _, window in parts])
    return steps.repeat_interleave(torch.tensor(_counts(parts)))[_places(parts)]


def merged(replays: Sequence[Replay], parts: Sequence[Part]) -> Replay:
    """The replay of a micro-batch from those of its parts."""
    if len(replays) == 1:
        return replays[0]
    places = _places(parts)

    def join(values: Sequence[Tensor]) -> Tensor:
        rows = [
            value.expand(count, *value.shape[1:])
            for value, count in zip(values, _counts(parts), strict=True)
        ]
        return torch.cat(rows)[places.to(values[0].device)]

    names = replays[0].statistics
    weights = [one.weight for one in replays if one.weight is not None]
    return Replay(
        join([one.log_prob for one in replays if one.log_prob is not None]),
        {name: join([one.statistics[name] for one in replays]) for name in names},
        join(weights) if weights else None,
    )


def _counts(parts: Sequence[Part]) -> list[int]:
    return [1 if isinstance(rows, slice) else len(rows) for rows, _ in parts]


def _places(parts: Sequence[Part]) -> Tensor:
    """Where each row of the micro-batch is among the rows of all parts, one after another."""
    rows = [torch.arange(1) if isinstance(part.rows, slice) else part.rows for part in parts]
    return torch.cat(rows).argsort()
