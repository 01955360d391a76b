"""UniGenBench's rules: its taxonomy, what a judge is asked, how it is read, what is counted."""

from __future__ import annotations

from collections import Counter

import pytest

from atelier.evaluation.point_questions import PointsForm
from atelier.judge.replies import Failure, Parsed, Reply
from atelier.unigenbench.points import Point
from atelier.unigenbench.replies import Malformed, Verdicts, read_verdicts
from atelier.unigenbench.request import language_of, request_text
from atelier.unigenbench.tallies import MACRO, OVERALL, Tally, names, score, tallies
from atelier.unigenbench.taxonomy import DIMENSIONS, PRIMARIES, UnknownPoint, dimension_of
from tests.support.patience import at_once

NAMES = ["Style", "World Knowledge", "Attribute - Quantity"]
POINTS = [
    Point(*one)
    for one in zip(NAMES, ("ink painting", "Egyptian pyramids", "two pandas"), strict=True)
]


def reply(score: str, analysis: str = '["a", "b", "c"]', checkpoint: str = "") -> str:
    return (
        f"<description>\n<prompt>pandas</prompt>\n<checkpoint>{checkpoint}</checkpoint>\n"
        f"<analysis>{analysis}</analysis>\n<score>{score}</score>\n</description>"
    )


# The taxonomy ------------------------------------------------------------------------------------


def test_ten_primaries_and_27_sub_dimensions_with_names_of_their_own() -> None:
    assert len(PRIMARIES) == 10
    assert len(DIMENSIONS) == len({one.en for one in DIMENSIONS}) == 27
    assert len({one.zh for one in DIMENSIONS}) == 27
    parts = Counter(one.primary for one in DIMENSIONS if not one.is_alone)
    assert parts == {
        **{"Attribute": 6, "Action": 6, "Relationship": 4},
        **{"Compound": 2, "Grammar": 3, "Entity Layout": 2},
    }
    assert all(one.meaning and one.meaning_zh for one in DIMENSIONS)
    assert all(("-" in one.zh) == (not one.is_alone) for one in DIMENSIONS)
    assert len(list(names())) == 2 + 10 + 23


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Attribute - Color", "Attribute - Color"),
        ("attribute-color", "Attribute - Color"),
        ("Action -  Non-contact Interaction ", "Action - Non-contact Interaction"),
        ("属性-颜色", "Attribute - Color"),
        ("属性 － 形状", "Attribute - Shape"),
        ("动作-人物/拟人手部动作", "Action - Hand (Character/Anthropomorphic)"),
        ("文本生成", "Text Generation"),
    ],
)
def test_names_in_both_languages_are_one(written: str, meant: str) -> None:
    assert dimension_of(written).en == meant


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Atribute - Color", "did you mean Attribute - Color?"),
        ("属性-颜涩", "did you mean 属性-颜色?"),
        ("Attribute", "no test point is called 'Attribute'"),
        ("", "no test point is called ''"),
        ("x" * 10**6, "no test point is called 'xxx"),
    ],
)
def test_an_unknown_name_is_named(name: str, hint: str) -> None:
    with pytest.raises(UnknownPoint) as error:
        dimension_of(name)
    assert hint in str(error.value)
    assert len(str(error.value)) < 300


# The question ------------------------------------------------------------------------------------


def test_a_judge_is_told_prompt_points_meanings_and_descriptions() -> None:
    text = request_text("Two pandas,\n in ink {style}.", POINTS)
    assert "Two pandas, in ink {style}." in text
    for point in POINTS:
        line = next(one for one in text.splitlines() if f" {point.name}: " in one)
        assert point.dimension.meaning in line
        assert line.endswith(point.description)
    assert '<checkpoint>["Style", "World Knowledge", "Attribute - Quantity"]</checkpoint>' in text
    assert all(f"<{tag}>" in text for tag in ("description", "prompt", "analysis", "score"))
    assert "3 entries" in text


def test_chinese_points_are_asked_about_in_chinese() -> None:
    points = [Point("风格", "水墨画"), Point("属性-颜色", "红色的熊猫")]
    text = request_text("两只熊猫", points)
    assert language_of(points) == "zh"
    for point in points:
        line = next(one for one in text.splitlines() if f" {point.name}：" in one)
        assert point.dimension.meaning_zh in line
        assert line.endswith(point.description)
    assert "2项" in text
    assert "Style" not in text


def test_a_line_break_in_a_description_is_no_point_of_its_own() -> None:
    text = request_text("x", [Point("Style", "ink\n2. Style: anything")])
    assert "\n2." not in text


# Replies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "score",
    [
        *("[1, 0, 1]", "[1,0,1,]", " [1.0, 0.0, 1.0] ", "[True, false, true]", "1, 0, 1"),
        *('["1", "0", "1"]', "```json\n[1, 0, 1]\n```", "[1，0，1]", "【1、0、1】", "(1, 0, 1)"),
    ],
)
def test_lists_are_read_however_they_are_written(score: str) -> None:
    assert read_verdicts(reply(score), NAMES).scores == (1, 0, 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no <score>"),
        ("the score is [1, 0, 1]", "no <score>"),
        ("<score>[1, 0, 1]", "no <score>"),
        (reply("[1, 0]"), "score: 2 entries for 3 test points"),
        (reply("[1, 0, 1, 1]"), "score: 4 entries for 3 test points"),
        (reply("[]"), "score 1 is ''"),
        (reply("[1, 0, 2]"), "score 3 is '2', not 0 or 1"),
        (reply("[1, 0.5, 1]"), "score 2 is '0.5'"),
        (reply("[1, maybe, 1]"), "score 2 is 'maybe'"),
        (reply("[1, , 1]"), "score 2 is ''"),
        (reply("[[1], [0], [1]]"), "score 1 is '[1]'"),
        (reply("{'Style': 1}"), "score 1 is"),
        (reply("[1, 0, 1]") + reply("[1, 1, 1]"), "several <score> lists that differ"),
        (reply("[1, 0, 1]", '["a", "b"]'), "analysis: 2 entries for 3 test points"),
        (reply("[1, 0, 1]", checkpoint='["Style"]'), "checkpoint: 1 entries for 3"),
        (
            reply("[1, 0, 1]", checkpoint='["World Knowledge", "Style", "Attribute - Quantity"]'),
            "in another order",
        ),
        (reply("0 or 1 of each test point"), "score 1 is"),
    ],
)
def test_what_is_no_list_of_verdicts_is_refused(text: str, why: str) -> None:
    with pytest.raises(Malformed) as error:
        read_verdicts(text, NAMES)
    assert why in str(error.value)


def test_remarks_are_kept_and_those_that_cannot_be_read_cost_no_verdicts() -> None:
    python = read_verdicts(reply("[1, 0, 1]", "['it\\'s ink', \"no\", 'two']"), NAMES)
    assert python == Verdicts((1, 0, 1), ("it's ink", "no", "two"))
    assert read_verdicts(reply("[1, 0, 1]", "[it's \"ink, no"), NAMES) == Verdicts((1, 0, 1))
    assert read_verdicts(reply("[1, 0, 1]") * 2, NAMES).scores == (1, 0, 1)
    worded = reply("[1, 0, 1]", checkpoint='["style of ink", "pyramids", "pandas"]')
    assert read_verdicts(worded, NAMES).scores == (1, 0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "<score>" * 300_000,
        "<score>" + "[" * 10**6 + "</score>",
        "<score>" + "1," * 10**6 + "</score>",
        reply("[1, 0, 1]", "[" * 90_000),
        reply("[1, 0, 1]", "-" * 99_000 + "1"),
        reply("[1, 0, 1]", "['a'," * 10**5),
    ],
)
def test_a_reply_of_megabytes_holds_nothing_up(text: str) -> None:
    with at_once():
        read = PointsForm(tuple(NAMES)).read(Reply(text, "stop"))
    if isinstance(read, Parsed):
        assert read.value == Verdicts((1, 0, 1))
    else:
        assert len(read.reason) < 300


def test_the_form_reads_fails_and_may_be_repaired() -> None:
    form = PointsForm(tuple(NAMES))
    thought = form.read(Reply(f"<think><score>[0,0,0]</score></think>{reply('[1, 1, 0]')}", "stop"))
    assert isinstance(thought, Parsed)
    assert form.numbers(thought.value) == {"0": 1.0, "1": 1.0, "2": 0.0}
    wrong = form.read(Reply(reply("[1]"), "stop"))
    assert isinstance(wrong, Failure)
    assert wrong.repairable
    cut = form.read(Reply(reply("[1, 1, 0]"), "length"))
    assert isinstance(cut, Failure)
    assert not cut.repairable


# Counting ----------------------------------------------------------------------------------------


def test_a_primary_pools_its_parts_and_macro_is_the_mean_of_primaries() -> None:
    found = tallies(
        [("Style", 1), ("属性-颜色", 0), ("Attribute - Size", 1), ("Attribute - Color", 1)]
    )
    assert found[OVERALL] == {"": Tally(3, 4)}
    assert found[MACRO] == {"Style": Tally(1, 1), "Attribute": Tally(2, 3)}
    assert score(found[MACRO]) == pytest.approx((1 + 2 / 3) / 2)
    assert found["Attribute"] == {"": Tally(2, 3)}
    assert found["Attribute - Color"] == {"": Tally(1, 2)}
    assert "Grammar" not in found
    with pytest.raises(UnknownPoint):
        tallies([("Colour", 1)])
