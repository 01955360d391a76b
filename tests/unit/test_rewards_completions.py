"""Rewards of completions: the form that was asked for, and the length."""

import itertools
import re
import threading

import pytest
from PIL import Image
from pydantic import ValidationError

from atelier.config.sections.rewards import FormatConfig, LengthConfig
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
    """A golden value of the Qwen vision GRPO guide."""
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


@pytest.mark.parametrize(
    "pattern",
    [
        "a{99999999999}",
        "(" * 900 + "a" + ")" * 900,
        "((a{999}){999}){999}",
        "(?P<a",
        "[a",
    ],
)
def test_a_pattern_that_cannot_be_compiled_is_named(pattern):
    ((key, problem),) = FormatConfig(pattern=pattern).conflicts()
    assert key == "pattern"
    assert len(problem) < 300


def test_a_pattern_as_long_as_a_book_is_refused():
    with pytest.raises(ValidationError, match="pattern"):
        FormatConfig(pattern="(" * 3000 + "a" + ")" * 3000)


def test_a_slow_pattern_costs_a_second_and_holds_no_other_thread():
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    slow, right = scores(
        FormatScorer(FormatConfig(pattern="((((a+)+)+)+)+b|c")), "a" * 200_000, "c"
    )
    done.set()
    thread.join(10)
    assert slow == Missing("the pattern took longer than 1 s")
    assert right == 1.0
    assert len(ticks) > 30


def test_processor_time_of_other_threads_is_given_back():
    class Starved:
        """Others take the processor at first."""

        def __init__(self):
            self.budgets = []

        def fullmatch(self, text, concurrent, timeout):
            self.budgets.append(timeout)
            if len(self.budgets) < 3:
                raise TimeoutError
            return re.match(text, text)

    scorer = FormatScorer(FormatConfig())
    scorer._pattern = starved = Starved()
    assert scores(scorer, "a") == [1.0]
    assert starved.budgets == [1.0, 4.0, 16.0]


@pytest.mark.parametrize(
    "text",
    [
        "<think>" + "</think><answer></answer>" * 100_000 + "x",
        "<think>" * 300_000,
        "<think>" + "</think>" * 300_000,
        "<think></think>" + "<answer>" * 300_000,
        "<think></think><answer>" + "</answer>" * 300_000 + "x",
        "<think></think><answer>" + "</answer>   " * 200_000 + "x",
        "<think></think>" + " " * 1_000_000 + "x",
        " " * 1_000_000,
    ],
    ids=range(8),
)
def test_the_default_pattern_is_fast_for_every_text(text):
    assert scores(FormatScorer(FormatConfig()), text) == [0.0]


def test_the_default_pattern_takes_what_the_plain_one_takes():
    plain = re.compile(r"(?s)\s*<think>.*?</think>\s*<answer>.*?</answer>\s*")
    parts = ["<think>", "</think>", "<answer>", "</answer>", " ", "a"]
    texts = ["".join(one) for n in range(7) for one in itertools.product(parts, repeat=n)]
    wanted = [float(plain.fullmatch(text) is not None) for text in texts]
    assert scores(FormatScorer(FormatConfig()), *texts) == wanted
    assert sum(wanted) > 10


@pytest.mark.parametrize(
    "bounds",
    [
        {"longest": 2**31 - 1},
        {"longest": 2**31 - 1, "shortest": 2**31 - 1},
        {"fall_off": 1e9},
        {"fall_off": 1e-300, "unit": "characters"},
    ],
)
def test_the_golden_sample_is_short_whatever_the_bounds(bounds):
    scorer = LengthScorer(LengthConfig(**bounds))
    batch, expected, tolerance = scorer.golden()
    assert all(len(one["completion"]) <= 2000 for one in batch.metadata)
    assert scorer.score(batch).values == pytest.approx(expected, abs=tolerance)


def test_an_endless_fall_off_is_refused():
    with pytest.raises(ValidationError, match="fall_off"):
        LengthConfig(fall_off=1e308)
