"""GenEval's three scores: the golden values, and each rule by itself."""

import pytest

from atelier.rewards.scorers.geneval import (
    MOST_OBJECTS,
    Detection,
    GenevalScore,
    confident,
    relations,
    score,
)

LEFT, MIDDLE, RIGHT = (0, 40, 20, 60), (40, 40, 60, 60), (80, 40, 100, 60)
TOP, BOTTOM = (40, 0, 60, 20), (40, 80, 60, 100)


def dogs(*colours, box=MIDDLE):
    return [Detection("dog", box, 0.95, colour) for colour in colours]


def cat(box=LEFT):
    return Detection("cat", box, 0.95)


def scored(detections, *include, exclude=(), tag="colors"):
    return score(detections, {"tag": tag, "include": include, "exclude": exclude})


def dog(count=1, **demands):
    return {"class": "dog", "count": count, **demands}


CAT = {"class": "cat", "count": 1}
RIGHT_OF_CAT = dog(position=["right of", 0])

# Golden values of MM-GRPO, and what strict and official say of the same images.
GOLDEN = {
    "count 2, found 1": (dogs(None), [dog(2)], GenevalScore(0.5, False, False)),
    "count 2, found 5": (dogs(*[None] * 5), [dog(2)], GenevalScore(-0.5, False, True)),
    "count 1 with colour, found 2": (
        dogs("red", "red"),
        [dog(color="red")],
        GenevalScore(0.0, False, True),
    ),
    "2 found, 1 of the colour": (
        dogs("red", "blue"),
        [dog(2, color="red")],
        GenevalScore(0.75, False, False),
    ),
    "position right": ([cat(), *dogs(None)], [CAT, RIGHT_OF_CAT], GenevalScore(1.0, True, True)),
    "position wrong": (
        [cat(RIGHT), *dogs(None)],
        [CAT, RIGHT_OF_CAT],
        GenevalScore(0.75, False, False),
    ),
    "position's target missing": (
        dogs(None),
        [CAT, RIGHT_OF_CAT],
        GenevalScore(1 / 3, False, False),
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_values(case):
    detections, include, expected = GOLDEN[case]
    found = scored(detections, *include)
    assert found.soft == pytest.approx(expected.soft)
    assert (found.strict, found.official) == (expected.strict, expected.official)


@pytest.mark.parametrize(("found", "soft"), [(0, 0), (1, 1 / 3), (3, 1), (4, 2 / 3), (7, -1 / 3)])
def test_every_object_too_few_or_too_many_costs_the_same(found, soft):
    result = scored(dogs(*[None] * found), dog(3))
    assert result.soft == pytest.approx(soft)
    assert result.strict == (found == 3)
    assert result.official == (found >= 3)


def test_a_wrong_count_gets_one_zero_for_colour_and_position_together():
    demands = dog(2, color="red", position=["right of", 0])
    assert scored([cat(), *dogs("red")], CAT, demands).soft == pytest.approx((1 + 0.5 + 0) / 3)


def test_a_position_is_not_looked_at_where_the_colour_is_wrong():
    demands = dog(color="red", position=["right of", 0])
    for box in (LEFT, RIGHT):
        found = scored([cat(), *dogs("blue", box=box)], CAT, demands)
        assert found.soft == pytest.approx((1 + 1 + 0) / 3)
        assert not found.official


def test_the_mean_is_of_terms_and_not_of_clauses():
    found = scored([cat(), *dogs("blue")], CAT, dog(color="red"))
    assert found.soft == pytest.approx((1 + 1 + 0) / 3)


def test_every_object_must_lie_as_asked_for():
    pair = [*dogs(None, box=MIDDLE), *dogs(None, box=TOP)]
    demands = dog(2, position=["right of", 0])
    assert scored([cat(), *pair], CAT, demands).strict
    above = scored([cat((40, 20, 60, 40)), *pair], CAT, dog(2, position=["above", 0]))
    assert above.soft == pytest.approx(0.75)
    assert not above.official


def test_the_official_score_takes_the_surest_of_too_many():
    blue = Detection("dog", LEFT, 0.5, "blue")
    sure, unsure = (Detection("dog", MIDDLE, sure, "red") for sure in (0.9, 0.4))
    assert scored([blue, sure], dog(color="red")).official
    assert not scored([blue, unsure], dog(color="red")).official


def test_only_the_official_score_knows_what_is_excluded():
    exclude = [{"class": "dog", "count": 3}, {"class": "cat", "count": 1}]
    two = scored(dogs(None, None), dog(2), exclude=exclude, tag="counting")
    assert two == GenevalScore(1.0, True, True)
    assert not scored(dogs(*[None] * 3), dog(2), exclude=exclude, tag="counting").official
    with_cat = scored([cat(), *dogs(None, None)], dog(2), exclude=exclude, tag="counting")
    assert with_cat == GenevalScore(1.0, True, False)


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        (LEFT, {"left of"}),
        (RIGHT, {"right of"}),
        (TOP, {"above"}),
        (BOTTOM, {"below"}),
        ((0, 0, 20, 20), {"left of", "above"}),
        ((80, 80, 100, 100), {"right of", "below"}),
        (MIDDLE, set()),
        ((44, 40, 64, 60), set()),  # 4 apart, and 0.1 (20 + 20) is the margin
        ((49, 40, 69, 60), {"right of"}),  # (9 - 4) / 9 is more than a half
        ((47, 40, 67, 60), set()),  # (7 - 4) / 7 is not
        ((52, 0, 72, 20), {"above"}),  # hardly to the right
    ],
)
def test_relations_seen_from_the_middle(box, expected):
    first, second = Detection("dog", box), Detection("cat", MIDDLE)
    assert relations(first, second) == expected
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert relations(second, first) == {opposite[one] for one in expected}


def test_what_counts_as_found():
    found = [Detection("dog", MIDDLE, sure) for sure in (0.3, 0.31, 0.9, 0.91)]
    assert [one.confidence for one in confident(found, "colors")["dog"]] == [0.91, 0.9, 0.31]
    assert [one.confidence for one in confident(found, "counting")["dog"]] == [0.91]
    many = [Detection("dog", MIDDLE, 0.4 + i / 100) for i in range(30)]
    kept = confident([*many, cat()], "colors")
    assert [one.confidence for one in kept["dog"]] == [
        one.confidence for one in many[: -MOST_OBJECTS - 1 : -1]
    ]
    assert len(kept["cat"]) == 1


def test_a_position_that_refers_to_a_later_clause_is_no_score():
    with pytest.raises(ValueError, match=r"an earlier clause, not to include\[1\]"):
        scored([cat(), *dogs(None)], dog(position=["right of", 1]), CAT)
