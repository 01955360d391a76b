"""P(yes) from log-probabilities."""

from math import exp, inf, log, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atelier.judge.probability import read_yes
from atelier.judge.replies import Failure, Parsed, Reply


def reply(*first_token, **kind):
    return Reply("Yes", "length", first_token=first_token or None, **kind)


@pytest.mark.parametrize(
    ("first_token", "expected"),
    [
        ([("Yes", log(0.6)), ("No", log(0.2))], 0.75),
        ([("yes", log(0.3)), (" Yes", log(0.3)), ("NO", log(0.1)), (" no", log(0.1))], 0.75),
        ([("\u2581Yes", log(0.6)), ("\u0120No", log(0.2))], 0.75),
        ([("Yes", log(0.6)), ("Yes", log(0.6)), ("No", log(0.2))], 0.75),  # the chosen one again
        ([("The", log(0.5)), ("Yes", log(0.3)), ("No", log(0.1))], 0.75),
        ([("Yes", log(0.6)), ("Norway", log(0.2)), ("No", log(0.2)), ("Yes.", -3.0)], 0.75),
        ([("Yes", -0.001)], 1.0),
        ([("No", -0.001)], 0.0),
        ([("Yes", 0.0), ("No", -inf)], 1.0),
        ([("Yes", -9999.0), ("No", 0.0)], 0.0),
        ([("Yes", 1e-7), ("No", -9999.0)], 1.0),
    ],
)
def test_the_share_of_yes(first_token, expected):
    found = read_yes(reply(*first_token))
    assert isinstance(found, Parsed), found
    assert found.value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (reply(), "sends none"),
        (reply(("Maybe", -0.1)), "neither yes nor no"),
        (reply(("Yes", -inf), ("No", -9999.0)), "neither yes nor no"),
        (reply(("Well", -0.1), ("Yes", log(0.004)), ("No", log(0.001))), "0.005 only"),
        (reply(("Yes", nan), ("No", -0.1)), "no log-probability"),
        (reply(("Yes", 0.7), ("No", -0.1)), "no log-probability"),
        (reply(("Yes", -0.1), refusal="I will not"), "refused"),
        (Reply("", "content_filter", first_token=(("Yes", -0.1),)), "content_filter"),
    ],
)
def test_missing_says_why(said, reason):
    found = read_yes(said)
    assert isinstance(found, Failure)
    assert reason in found.reason
    assert found.reply is said


def test_the_least_mass_can_be_set():
    said = reply(("Well", -0.1), ("Yes", log(0.003)), ("No", log(0.001)))
    assert isinstance(read_yes(said), Failure)
    assert read_yes(said, minimum_mass=0.0).value == pytest.approx(0.75)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["Yes", " no", "NO", "x"]) | st.text(), st.floats())))
def test_it_is_a_probability_or_a_failure(first_token):
    found = read_yes(Reply("", None, first_token=tuple(first_token)))
    if isinstance(found, Parsed):
        assert 0.0 <= found.value <= 1.0
    else:
        assert found.reason


@settings(max_examples=50, deadline=None)
@given(st.floats(-5, -0.7), st.floats(-5, -0.7))
def test_yes_and_no_are_mirrors(yes, no):
    one = read_yes(reply(("Yes", yes), ("No", no)))
    other = read_yes(reply(("Yes", no), ("No", yes)))
    assert one.value == pytest.approx(exp(yes) / (exp(yes) + exp(no)))
    assert one.value + other.value == pytest.approx(1.0)
