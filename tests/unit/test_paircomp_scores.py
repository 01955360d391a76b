"""PairComp's score files: read, summarised as by hand, and refused with the place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.data.readers.paircomp import read
from atelier.errors import DataError
from atelier.evaluation.score_files import category_means, read_score_file

PAIRCOMP = Path(__file__).resolve().parents[3] / "shared" / "data" / "paircomp" / "PairComp.json"


def entry(pair, scores):
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return [
        {"pair_idx": pair, "prompt_idx": caption, "image_idx": image, "score": score}
        for (caption, image), score in zip(places, scores, strict=True)
    ]


def written(folder, pairs):
    path = folder / "scores.json"
    path.write_text(json.dumps(pairs))
    return path


def test_the_means_of_one_pair(tmp_path):
    """Golden 13 of spec janus."""
    path = written(tmp_path, {"0": entry(0, (0.9, 0.8, 0.5, 0.6))})
    (whole,) = category_means(read_score_file(path), 10)
    assert whole.category is None
    assert whole.arithmetic.mean == pytest.approx(0.7)
    assert whole.geometric.mean == pytest.approx(0.681732, abs=1e-6)


def test_over_all_the_categories_count_alike(tmp_path):
    scores = {0: (1, 1, 1, 1), 1: (0.5, 0.5, 0.5, 0.5), 2: (0, 1, 1, 1), 3: (0.16, 1, 1, 1)}
    path = written(tmp_path, {str(pair): entry(pair, one) for pair, one in scores.items()})
    categories = {0: "Color", 1: "Color", 2: "Color", 3: "Style & Tone"}
    colour, style, whole = category_means(read_score_file(path, categories), 100)
    assert [one.category for one in (colour, style, whole)] == ["Color", "Style & Tone", None]
    assert (colour.arithmetic.mean, colour.arithmetic.n) == (pytest.approx(0.75), 3)
    assert (style.arithmetic.mean, style.arithmetic.n) == (pytest.approx(0.79), 1)
    assert whole.arithmetic.mean == pytest.approx(0.77)
    assert colour.geometric.mean == pytest.approx(0.5)
    assert style.geometric.mean == pytest.approx(0.16**0.25)
    assert whole.geometric.mean == pytest.approx((0.5 + 0.16**0.25) / 2)
    assert whole.geometric.low < whole.geometric.mean < whole.geometric.high


@pytest.mark.skipif(not PAIRCOMP.is_file(), reason="PairComp.json is not beside this checkout")
def test_scores_of_all_550_pairs(tmp_path):
    """Each category has one level of its own, so the macro mean is known."""
    pairs = {one.metadata["pair"]: one.metadata["category"] for one in read(PAIRCOMP)}
    names = list(dict.fromkeys(pairs.values()))
    level = {name: (index + 1) / 10 for index, name in enumerate(names)}
    scores = {str(pair): entry(pair, [level[name]] * 4) for pair, name in pairs.items()}
    path = written(tmp_path, scores)
    *categories, whole = category_means(read_score_file(path, pairs), 200)
    assert {one.category: one.arithmetic.mean for one in categories} == pytest.approx(level)
    counts = {one.category.split(" diff")[0]: one.arithmetic.n for one in categories}
    assert counts == {
        **{"Overall appearance": 250, "Style & Tone": 100, "Color": 50},
        **{"Counting": 50, "Position": 50, "Text": 50},
    }
    assert whole.arithmetic.mean == pytest.approx(np.mean(list(level.values())))
    assert whole.arithmetic.n == 550
    result = CliRunner().invoke(
        application, ["paircomp", "summary", str(path), "--pairs", str(PAIRCOMP)]
    )
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 8
    assert lines[-1].split() == [
        *["All", "0.350", "(0.350", "to", "0.350)", "0.350", "(0.350", "to", "0.350)", "550"]
    ]


GOOD = entry(0, (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "a non-empty JSON object of pairs"),
        ({}, "a non-empty JSON object of pairs"),
        ({"0": GOOD[:3]}, "pair 0: a list of 4 images expected"),
        ({"0": [*GOOD[:3], GOOD[0]]}, "pair 0: image 3: prompt_idx 0, image_idx 0 stands twice"),
        ({"0": [*GOOD[:3], 3]}, "pair 0: image 3: an object with pair_idx"),
        ({"0": [*GOOD[:3], {**GOOD[3], "score": 1.5}]}, "image 3: key 'score': a number from 0"),
        ({"0": [*GOOD[:3], {**GOOD[3], "score": None}]}, "image 3: key 'score'"),
        ({"0": [*GOOD[:3], {**GOOD[3], "prompt_idx": 2}]}, "key 'prompt_idx': a whole number"),
        ({"0": [*GOOD[:3], {**GOOD[3], "scores": 1}]}, "unknown key 'scores'; did you mean score"),
        ({"1": GOOD}, "pair 1: image 0: key 'pair_idx': 1, as its list is called, not 0"),
        ({"0": GOOD, "7": entry(7, (1, 1, 1, 1))}, "pair 7: is not one of the 1 pairs"),
        ({"x": entry("x", (1, 1, 1, 1))}, "pair x: is not one of the 1 pairs"),
    ],
)
def test_what_is_no_score_file_is_refused(tmp_path, pairs, message):
    path = written(tmp_path, pairs)
    with pytest.raises(DataError, match=f"{path}: (.*\n)*.*{message}"):
        read_score_file(path, {0: "Color"})


def test_the_verb_needs_no_categories(tmp_path):
    path = written(tmp_path, {"0": entry(0, (0.9, 0.8, 0.5, 0.6))})
    result = CliRunner().invoke(application, ["paircomp", "summary", str(path)])
    assert result.exit_code == 0, result.output
    assert "0.700" in result.output
    assert "0.682" in result.output
