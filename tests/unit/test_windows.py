"""Windows against golden sequences, and what holds for all of them."""

from __future__ import annotations

import math
from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atelier.config.sections.rollout import WindowConfig
from atelier.dynamics.windows import Window, draw_window, interval
from atelier.policies.base import Replay
from atelier.policies.flow.parts import Part, at_steps, merged, parts_by_window


def sequence(count: int, num_steps: int, **settings) -> list[Window]:
    config = WindowConfig(**settings)
    return [draw_window(config, num_steps, seed=1, step=step) for step in range(1, count + 1)]


def published(
    strategy: str, steps: int, last: int, size: int, stride: int, back: bool, longest: int
):
    """MixGRPO's rules as they are published, with the state they keep, empty windows left in."""
    start = count = 0
    for _ in range(steps):
        yield tuple(range(start, min(start + size, last)))
        count += 1
        share = start / last
        if strategy == "decay":
            length = max(1, int(longest * (1 - share) + 1 * share))
        elif strategy == "exp_decay":
            length = math.ceil(longest * math.exp(-0.1 * max(0, start - 13)))
        else:
            length = longest
        if count >= length:
            count, start = 0, start + stride
            if start > last:
                start = 0 if back else last


@pytest.mark.parametrize("strategy", ["progressive", "decay", "exp_decay"])
@pytest.mark.parametrize(
    ("stride", "back"), [(1, True), (1, False), (4, True), (4, False), (0, True)]
)
@pytest.mark.parametrize("longest", [2, 25])
def test_300_iterations_follow_the_published_rules(
    strategy: str, stride: int, back: bool, longest: int
) -> None:
    """Up to the first empty window, where ours begins anew or stays on the last step."""
    ours = sequence(
        300, 25, strategy=strategy, size=4, stride=stride, roll_back=back, steps_per_window=longest
    )
    theirs = list(published(strategy, 300, 23, 4, stride, back, longest))
    whole = next((i for i, window in enumerate(theirs) if not window), 300)
    assert ours[:whole] == theirs[:whole]
    assert whole >= 6
    assert all(ours)
    if whole < 300:
        assert ours[whole] == ((0, 1, 2, 3) if back else (22,))


def test_golden_sequence_with_overlap() -> None:
    windows = sequence(14, 8, strategy="progressive", size=4, stride=1, steps_per_window=2)
    golden = [(0, 3), (0, 3), (1, 4), (1, 4), (2, 5), (2, 5), (3, 5), (3, 5), (4, 5), (4, 5)]
    golden += [(5, 5), (5, 5), (0, 3), (0, 3)]
    assert [(window[0], window[-1]) for window in windows] == golden


def test_golden_intervals() -> None:
    decay = WindowConfig(strategy="decay", steps_per_window=10, stride=1)
    golden = [10, 9, 9, 8, 8, 8, 7, 7, 6, 6, 6, 5, 5, 4, 4, 4, 3, 3, 2, 2, 2, 1, 1, 1]
    assert [interval(decay, start, 23) for start in range(24)] == golden
    exponential = WindowConfig(strategy="exp_decay", steps_per_window=25, stride=1)
    golden = [25] * 14 + [23, 21, 19, 17, 16, 14, 13, 12, 11, 10]
    assert [interval(exponential, start, 23) for start in range(24)] == golden
    windows = sequence(60, 25, strategy="decay", size=4, stride=1, steps_per_window=10)
    stays = [len(list(same)) for _, same in groupby(window[0] for window in windows)]
    assert stays[:7] == [10, 9, 9, 8, 8, 8, 7]


def test_random_reaches_every_place_and_fast_the_first_half() -> None:
    drawn = sequence(300, 25, strategy="random", size=4)
    assert {window[0] for window in drawn} == set(range(20))
    drawn = sequence(300, 25, strategy="fast", size=4)
    assert {window[0] for window in drawn} == set(range(9))


@pytest.mark.parametrize(
    ("num_steps", "fraction", "include_last", "count"),
    [
        *((50, 0.6, False, 30), (50, 0.98, False, 49), (50, 0.99, False, 49)),
        *((50, 0.58, False, 28), (10, 0.05, False, 1), (50, 1.0, True, 50)),
    ],
)
def test_golden_fractions(num_steps: int, fraction: float, include_last: bool, count: int) -> None:
    """Single steps, ascending, drawn anew each training step."""
    last = num_steps if include_last else num_steps - 1
    drawn = sequence(
        200, num_steps, strategy="fraction", fraction=fraction, include_last=include_last
    )
    assert all(len(window) == len(set(window)) == count for window in drawn)
    assert all(list(window) == sorted(window) for window in drawn)
    assert {step for window in drawn for step in window} == set(range(last))
    assert len(set(drawn)) > 1 or count == last


def test_latents_between_two_steps_are_kept_once() -> None:
    """Those before the steps 0, 1, 4, 6, 7, and behind 1, 4 and 7, in their order."""
    apart = Part(slice(None), (0, 1, 4, 6, 7))
    assert (apart.places, apart.kept) == ((0, 1, 3, 5, 6), 8)
    together = Part(slice(None), (2, 3, 4))
    assert (together.places, together.kept) == ((0, 1, 2), 4)
    assert at_steps(torch.arange(8) * 10, [apart], 3).tolist() == [60]
    with pytest.raises(ValueError, match="gaps"):
        parts_by_window([(0, 1, 3), (0, 2, 3)], torch.device("cpu"))


def test_rows_of_several_windows_come_together_again() -> None:
    windows = [(2, 3), (0, 1), (1, 2), (2, 3)]
    parts = parts_by_window(windows, torch.device("cpu"))
    assert [part.numbers for part in parts] == [(0, 3), (1,), (2,)]
    for action in (0, 1):
        found = at_steps(torch.arange(4) * 10, parts, action)
        assert found.tolist() == [10 * window[action] for window in windows]
    own = torch.arange(4.0)[:, None]
    replays = [
        Replay(own[part.rows], {"one": torch.full((1, 1), float(number))})
        for number, part in enumerate(parts)
    ]
    whole = merged(replays, parts)
    assert torch.equal(whole.log_prob, own)
    assert whole.statistics["one"].flatten().tolist() == [0, 1, 2, 0]


def test_all_steps_with_the_last() -> None:
    assert sequence(1, 8, strategy="all", include_last=True) == [tuple(range(8))]


def test_scope_says_who_shares_a_window() -> None:
    def drawn(scope: str, group: int, rank: int) -> list[Window]:
        config = WindowConfig(strategy="random", size=2, scope=scope)
        return [draw_window(config, 12, 1, step, group, rank) for step in range(1, 60)]

    assert drawn("step", 0, 0) == drawn("step", 3, 5)
    assert drawn("group", 1, 0) == drawn("group", 1, 7) != drawn("group", 2, 0)
    assert drawn("rank", 1, 2) == drawn("rank", 5, 2) != drawn("rank", 1, 3)


@given(
    st.sampled_from(["all", "fast", "random", "fraction", "progressive", "decay", "exp_decay"]),
    st.integers(4, 30),
    st.integers(1, 4),
    st.sampled_from([None, 0, 1, 3]),
    st.booleans(),
    st.integers(1, 5000),
)
def test_no_window_is_empty_or_reaches_the_last_step(
    strategy: str, num_steps: int, size: int, stride: int | None, back: bool, step: int
) -> None:
    config = WindowConfig(
        strategy=strategy, size=min(size, num_steps // 2), stride=stride, roll_back=back
    )
    window = draw_window(config, num_steps, 3, step)
    assert 0 <= window[0] <= window[-1] < num_steps - 1
