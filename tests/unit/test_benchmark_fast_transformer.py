"""The benchmark of the fast transformer runs, and says what it is asked."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import fast_transformer
from benchmarks.arithmetic import arithmetic
from benchmarks.sd3_shape import SHAPES


@pytest.fixture(scope="module")
def said() -> list[dict]:
    torch.set_num_threads(1)
    tiny = ("--size", "tiny", "--device", "cpu", "--dtype", "float32")
    few = ("--rows", "2", "--steps", "3", "--repeats", "1")
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda line, **_: lines.append(json.loads(line)))
        fast_transformer.main([*tiny, *few])
    return lines


def of(said: list[dict], phase: str) -> list[dict]:
    return [one for one in said if one.get("phase") == phase]


def test_both_ways_are_measured_with_and_without_guidance(said: list[dict]) -> None:
    for phase, rate, times in (
        ("rollout", "images_per_second", 1),
        ("train", "sample_steps_per_second", 2),
    ):
        lines = of(said, phase)
        ways = [(one["guidance"], one["way"]) for one in lines]
        expected = [(guidance, way) for guidance in (1.0, 4.5) for way in ("stock", "fast")]
        assert ways == [one for one in expected for _ in range(times)]
        assert all(one[rate] > 0 and one["share_of_peak"] > 0 for one in lines)


def test_what_is_compared_is_the_same(said: list[dict]) -> None:
    lines = of(said, "equivalence")
    assert [one["guidance"] for one in lines] == [1.0, 4.5]
    for one in lines:
        assert one["velocity"] < 1e-5
        assert 0 < one["gradient"] < 1e-4, "equal to the last bit would be the same code"
        assert one["gradient_cosine"] > 0.999
    assert all(one["max"] < 1e-5 for one in of(said, "replay"))
    assert len(of(said, "replay")) == 4


def test_arithmetic_of_the_published_shape() -> None:
    """Counted on paper: 2.224 T forward and 2.483 T backward (spec performance 0)."""
    forward, both = arithmetic(SHAPES["medium"], latents=64, tokens=205)
    assert forward == pytest.approx(2.224e12, rel=2e-3)
    assert both - forward == pytest.approx(2.483e12, rel=2e-2)
