"""How long a GPU waits, by intervals whose answers were worked out by hand."""

from __future__ import annotations

import time

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from atelier.training.measures import Span, Stopwatch
from benchmarks import idle
from benchmarks.idle import (
    Interval,
    StepProfiler,
    gaps,
    idle_share,
    phase_of,
    union,
    waiting,
    worked,
)

CPU = ProfilerActivity.CPU
WINDOW = Interval(10.0, 20.0)
# Before the window and into it; two that overlap, one inside another; two that touch; one after it.
BUSY = [
    Interval(8.0, 11.0),
    Interval(14.0, 16.0),
    Interval(12.0, 14.5),
    Interval(12.5, 13.0),
    Interval(17.0, 18.0),
    Interval(18.0, 18.5),
    Interval(25.0, 26.0),
]


def test_the_union_has_no_moment_twice() -> None:
    expected = [Interval(10.0, 11.0), Interval(12.0, 16.0), Interval(17.0, 18.5)]
    assert union(BUSY, WINDOW) == expected
    assert idle_share(BUSY, WINDOW) == pytest.approx(0.35)  # 6.5 of 10 s are worked


def test_nothing_done_is_all_idle_and_all_done_is_none() -> None:
    assert idle_share([], WINDOW) == 1.0
    assert idle_share([Interval(0.0, 30.0)], WINDOW) == 0.0


def test_gaps_reach_the_ends_of_the_window_and_the_longest_is_first() -> None:
    assert gaps(BUSY, WINDOW) == [Interval(18.5, 20.0), Interval(11.0, 12.0), Interval(16.0, 17.0)]
    late = Interval(9.0, 20.0)
    assert gaps([Interval(12.0, 13.0)], late) == [Interval(13.0, 20.0), Interval(9.0, 12.0)]


def test_a_gap_is_of_the_phase_it_mostly_lies_in() -> None:
    spans = [Span("rollout", 10.0, 13.0), Span("update", 14.0, 20.0)]
    assert phase_of(Interval(12.0, 13.5), spans) == "rollout"
    assert phase_of(Interval(12.9, 13.9), spans) == idle.BETWEEN
    assert phase_of(Interval(13.5, 16.0), spans) == "update"


def test_what_is_said_of_a_step() -> None:
    # A phase of two spans counts as one: 10 to 11 and 15 to 17, of which 11 of BUSY is 1 + 1.
    spans = [Span("rollout", 10.0, 11.0), Span("score", 11.0, 12.0), Span("rollout", 15.0, 17.0)]
    found = waiting(BUSY, WINDOW, spans)
    assert found["seconds"] == 10.0
    assert found["idle"] == pytest.approx(0.35)
    assert found["phases"] == pytest.approx({"rollout": 1 / 3, "score": 1.0})
    assert found["gaps"] == [
        {"seconds": 1.5, "phase": idle.BETWEEN},
        {"seconds": 1.0, "phase": "score"},
        {"seconds": 1.0, "phase": "rollout"},
    ]


def test_no_more_gaps_are_told_than_the_longest() -> None:
    busy = [Interval(10.0 + each, 10.9 + each) for each in range(10)]
    assert len(waiting(busy, WINDOW, [])["gaps"]) == 5


def test_what_a_profiler_notes_lies_in_the_phase_it_was_done_in() -> None:
    """Both clocks are one: of a computation between two pauses, by a stopwatch and a profiler."""
    watch = Stopwatch()
    with profile(activities=[CPU]) as profiler:
        time.sleep(0.05)
        with watch("update"):
            one = torch.ones(600, 600) @ torch.ones(600, 600)
        time.sleep(0.05)
    assert one.shape == (600, 600)
    (span,) = watch.spans
    seen = worked(profiler, DeviceType.CPU)
    assert seen
    assert min(each.start for each in seen) > span.start - 0.01
    assert max(each.end for each in seen) < span.end + 0.01
    assert worked(profiler, DeviceType.CUDA) == []


def test_a_profiler_that_saw_nothing_is_no_idle_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "profile", lambda activities: profile(activities=[CPU]))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pytest.raises(RuntimeError, match="saw nothing"), StepProfiler(1)(Stopwatch()):
        torch.ones(2) + 1


def test_one_step_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a profiler of the CPU in the place of the GPU's."""
    begun = []

    def of_the_cpu(activities):
        assert activities == [ProfilerActivity.CUDA]
        begun.append(len(steps))
        return profile(activities=[CPU])

    monkeypatch.setattr(idle, "profile", of_the_cpu)
    monkeypatch.setattr(idle, "worked", lambda profiler, _: worked(profiler, DeviceType.CPU))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    around, steps = StepProfiler(2), []
    for step in (1, 2, 3):
        watch = Stopwatch()
        with around(watch):
            steps.append(step)
            with watch("rollout"):
                torch.ones(200, 200) @ torch.ones(200, 200)
            with watch("score"):
                time.sleep(0.05)
    assert begun == [1], "before the second step, when one was done"
    assert steps == [1, 2, 3]
    assert around.found is not None
    assert around.found["phases"]["rollout"] < 1
    assert around.found["phases"]["score"] == pytest.approx(1.0, abs=1e-3)
    assert around.found["gaps"][0]["phase"] == "score"
