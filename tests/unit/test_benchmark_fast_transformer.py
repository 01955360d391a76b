"""The benchmark of the fast transformer runs, and says what it is asked."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import redirect_stdout
from io import StringIO

import pytest
import torch

from benchmarks import fast_transformer
from benchmarks.arithmetic import arithmetic
from benchmarks.fast_transformer import SIZES, RandomEmbeddings, bench, equivalence, errors
from benchmarks.sd3_shape import SHAPES


@pytest.fixture(scope="module")
def said() -> list[dict]:
    torch.set_num_threads(1)
    tiny = ("--size", "small", "--device", "cpu", "--dtype", "float32")
    few = ("--rows", "2", "--steps", "3", "--repeats", "1")
    out = StringIO()
    with redirect_stdout(out):
        fast_transformer.main([*tiny, *few])
    return [json.loads(line) for line in out.getvalue().splitlines()]


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
        for way in ("stock", "fast"):
            assert one[f"{way}_error_velocity"] < 1e-5
            assert one[f"{way}_error_gradient"] < 1e-4
    assert all(one["max"] < 1e-5 for one in of(said, "replay"))
    assert len(of(said, "replay")) == 4


OPTIONS = Namespace(
    device="cpu",
    rows=2,
    dtype="bfloat16",
    checkpointing=False,
    compile=False,
    steps=3,
    repeats=1,
)


def test_what_is_exact_has_the_same_weights_in_float32() -> None:
    stock, fast, exact = (
        bench(way, SIZES["small"], 1.0, OPTIONS, exact=exact)
        for way, exact in (("stock", False), ("fast", False), ("stock", True))
    )
    weights = [dict(one.policy.module.named_parameters()) for one in (stock, fast, exact)]
    assert weights[0].keys() == weights[1].keys() == weights[2].keys()
    for name, value in weights[2].items():
        assert value.dtype == torch.float32
        assert torch.equal(value, weights[0][name].float()), name
        assert torch.equal(value, weights[1][name].float()), name
    answers = [one.answer() for one in (stock, fast, exact)]
    facts = equivalence(*answers)
    rounded = 1e-4
    for way in ("stock", "fast"):
        assert rounded < facts[f"{way}_error_velocity"] < 0.1, "16 bits"
        assert rounded < facts[f"{way}_error_gradient"] < 0.2
    assert (facts["velocity"], facts["gradient"]) == errors(answers[1], answers[0])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--rows", "3"), "--rows: an even number"),
        (("--rows", "0"), "--rows: give 2 or more, not 0"),
        (("--steps", "0"), "--steps: give 1 or more, not 0"),
        (("--repeats", "-1"), "--repeats: give 0 or more, not -1"),
        (("--guidance", "0"), "--guidance: give 1.0 or more, not 0"),
        (("--guidance", "1", "101"), "--guidance: 100 at most"),
        (("--device", "nonsense"), "--device: torch has no 'nonsense' here"),
        (("--device", "cuda:99"), "--device: torch has no 'cuda:99' here"),
        (("--ways", "fast"), "--ways: stock comes first"),
    ],
)
def test_wrong_options_are_refused(words: tuple[str, ...], expected: str, capsys) -> None:
    with pytest.raises(SystemExit) as refused:
        fast_transformer.main(["--size", "small", "--device", "cpu", *words])
    assert refused.value.code == 2
    assert expected in capsys.readouterr().err


def test_errors_are_by_the_norm_of_what_is_expected() -> None:
    found, expected = (torch.full((4,), one) for one in (3.0, 2.0))
    assert errors((found, expected), (expected, found)) == pytest.approx((0.5, 1 / 3))


def test_embeddings_of_a_text_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    random = RandomEmbeddings._random

    def watched(one: RandomEmbeddings, text: str):
        made.append(text)
        return random(one, text)

    monkeypatch.setattr(RandomEmbeddings, "_random", watched)
    embeddings = RandomEmbeddings(SIZES["small"], torch.device("cpu"))
    first, again = embeddings.encode(["a", "bc", "a"]), embeddings.encode(["bc"])
    assert sorted(made) == ["a", "bc"]
    assert torch.equal(first.embeddings[0], first.embeddings[2])
    assert torch.equal(first.embeddings[1], again.embeddings[0])
    assert not torch.equal(first.embeddings[0], first.embeddings[1])
    assert first.pooled.shape == (3, 48)


def test_arithmetic_of_the_published_shape() -> None:
    """Counted on paper: 2.224 T forward and 2.483 T backward."""
    forward, both = arithmetic(SHAPES["medium"], latents=64, tokens=205)
    assert forward == pytest.approx(2.224e12, rel=2e-3)
    assert both - forward == pytest.approx(2.483e12, rel=2e-2)
