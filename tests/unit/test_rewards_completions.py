"""Rewards of completions: the form that was asked for, and the length."""

import pytest
from PIL import Image

from atelier.config.rewards import FormatConfig, LengthConfig
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.scorers.completions import FormatScorer, LengthScorer


def scores(scorer, *completions):
    count = len(completions)
    metadata = [{} if one is None else {"completion": one} for one in completions]
    images = [Image.new("RGB", (4, 4))] * count
    return scorer.score(ScoreBatch(images, [""] * count, metadata, [0] * count)).values


def test_the_whole_completion_has_the_form():
    right = "<think>a\nb</think>\n<answer>c</answer>"
    wrong = ("c", f"{right} more", "<think>a</think>", "<answer>c</answer><think>a</think>", "")
    scorer = FormatScorer(FormatConfig())
    assert scores(scorer, right, *wrong) == [1.0] + [0.0] * len(wrong)


def test_a_form_of_yours():
    scorer = FormatScorer(FormatConfig(pattern=r"\d+"))
    assert scores(scorer, "12", "12 ") == [1.0, 0.0]
    assert scorer.golden()[1] == []


def test_a_pattern_that_is_none_is_named():
    ((key, problem),) = FormatConfig(pattern="(").conflicts()
    assert key == "pattern"
    assert "regular expression" in problem


def test_lengths_fall_off_evenly():
    """Golden value 6 of spec qwen 11."""
    scorer = LengthScorer(LengthConfig(longest=70, fall_off=90))
    wanted = {0: 1, 70: 1, 71: 0.988889, 100: 0.666667, 115: 0.5, 159: 0.011111, 160: 0, 200: 0}
    found = scores(scorer, *["a " * length for length in wanted])
    assert found == pytest.approx(list(wanted.values()), abs=1e-6)


def test_too_short_falls_off_as_well_and_characters_count_where_they_are_to():
    config = LengthConfig(unit="characters", shortest=4, longest=6, fall_off=4)
    assert scores(LengthScorer(config), "", "ab", "abcd", "abcdef", "abc def") == [
        0,
        0.5,
        1,
        1,
        0.75,
    ]


def test_bounds_that_cross_are_named():
    ((key, _),) = LengthConfig(shortest=5, longest=4).conflicts()
    assert key == "shortest"


@pytest.mark.parametrize("scorer", [FormatScorer(FormatConfig()), LengthScorer(LengthConfig())])
def test_without_a_completion_there_is_no_score(scorer):
    (score,) = scores(scorer, None)
    assert isinstance(score, Missing)
    assert "completion" in score.reason
