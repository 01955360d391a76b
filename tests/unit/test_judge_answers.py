"""Reading judges: shapes of answers met in the wild, each the right value or a failure."""

import json
import re
from typing import Annotated, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from atelier.judge.answers import (
    read_dimensions,
    read_json,
    read_number,
    read_text,
    read_verdict,
)
from atelier.judge.replies import Failure, Parsed, Reply
from atelier.tags import tagged
from tests.support.patience import at_once


class Score(BaseModel):
    reason: str = ""
    score: Annotated[int, Field(ge=0, le=10)]


class Real(BaseModel):
    score: float


class Texts(BaseModel):
    score: Literal["0", "1", "2"]


class Numbers(BaseModel):
    score: Literal[0, 1, 2]


class Nested(BaseModel):
    model_config = ConfigDict(extra="forbid")

    scores: dict[str, int]
    parts: tuple[int, int] = (0, 0)


FAILS = object()
FENCED = 'Here it is:\n```json\n{"score": 4}\n```\nHope that helps!'

JSON = [
    # Taken
    ('{"score": 4}', Score, 4),
    (' \n{"score": 4}\n ', Score, 4),
    ('\ufeff{"score": 4}', Score, 4),
    ('```json\n{"score": 4}\n```', Score, 4),
    ('```\n{"score": 4}\n```', Score, 4),
    ('```JSON\n{"score": 4}```', Score, 4),
    ('```json\n{"score": 4}', Score, 4),
    (FENCED, Score, 4),
    ('Sure! {"score": 4} Let me know.', Score, 4),
    ('Sure! {"score": 4}.', Score, 4),
    ('{"score": 4}\n{"score": 4}', Score, 4),
    ('{"score": 4, "reason": "a"} or {"reason": "a", "score": 4}', Score, 4),
    ('{"score": 4, "score": 4}', Score, 4),
    ('{"score": 4, "reason": "a {brace} and \\"quotes\\" ```"}', Score, 4),
    ('{"score": 4, "reason": "\\u00e9\\n中文 \U0001f600"}', Score, 4),
    ('{"score": 4, "extra": {"score": 9}}', Score, 4),
    ('{"score": 4, "reason": "1 < 2 </think>"}', Score, 4),
    ('<think>maybe {"score": 1}</think>{"score": 4}', Score, 4),
    ('maybe {"score": 1} \n</think>\n\n{"score": 4}', Score, 4),
    ('{"score": 0}', Score, 0),
    ('{"score": 10}', Score, 10),
    ('{"score": 4}', Real, 4.0),
    ('{"score": 4.5e0}', Real, 4.5),
    ('{"score": "2"}', Texts, "2"),
    ('{"score": 2}', Numbers, 2),
    ('{"scores": {"a": 1}, "parts": [1, 2]}', Nested, None),
    # Types
    ('{"score": "4"}', Score, FAILS),
    ('{"score": "4"}', Real, FAILS),
    ('{"score": "four"}', Score, FAILS),
    ('{"score": "8/10"}', Score, FAILS),
    ('{"score": "80%"}', Score, FAILS),
    ('{"score": true}', Score, FAILS),
    ('{"score": true}', Real, FAILS),
    ('{"score": true}', Numbers, FAILS),
    ('{"score": 2}', Texts, FAILS),
    ('{"score": "2"}', Numbers, FAILS),
    ('{"score": "3"}', Texts, FAILS),
    ('{"score": null}', Score, FAILS),
    ('{"score": [4]}', Score, FAILS),
    ('{"score": {"value": 4}}', Score, FAILS),
    ('{"score": 4.5}', Score, FAILS),
    ('{"Score": 4}', Score, FAILS),
    ('{"result": {"score": 4}}', Score, FAILS),
    ("{}", Score, FAILS),
    ('{"scores": {"a": 1}, "other": 2}', Nested, FAILS),
    ('{"scores": {"a": "1"}}', Nested, FAILS),
    # Ranges
    ('{"score": 11}', Score, FAILS),
    ('{"score": -1}', Score, FAILS),
    ('{"score": 1e999}', Real, FAILS),
    ('{"score": 1e301}', Real, FAILS),
    ('{"score": NaN}', Real, FAILS),
    ('{"score": Infinity}', Real, FAILS),
    ('{"score": -Infinity}', Real, FAILS),
    ('{"score": ' + "9" * 5000 + "}", Score, FAILS),
    # More than one, or half of one
    ('{"score": 4} {"score": 5}', Score, FAILS),
    ('{"score": 4}\n```json\n{"score": 5}\n```', Score, FAILS),
    ('{"score": 1} {"score": true}', Numbers, FAILS),
    ('{"score": 4, "score": 5}', Score, FAILS),
    ('{"score": 4, "score": "4"}', Score, FAILS),
    ('{"score": 4', Score, FAILS),
    ('{"score": 4, "reason": "it is cut', Score, FAILS),
    ('{"outer": {"score": 4}', Score, FAILS),
    ('{"outer": {"score": 4}, "mor', Score, FAILS),
    ('{"score": 4}}', Score, FAILS),
    ('"score": 4}', Score, FAILS),
    ('[{"score": 4}]', Score, FAILS),
    ('The list: [ {"score": 4} ]', Score, FAILS),
    ('[{"score": 4},', Score, FAILS),
    ("[4]", Score, FAILS),
    # Not JSON
    ('{"score": 4,}', Score, FAILS),
    ("{'score': 4}", Score, FAILS),
    ("{score: 4}", Score, FAILS),
    ('{"score": 4, // good\n}', Score, FAILS),
    ('{"score": 4 /* good */}', Score, FAILS),
    ('{"score": +4}', Score, FAILS),
    ('{"score": 04}', Score, FAILS),
    ('{"score": 4 5}', Score, FAILS),
    ('{"score": True}', Score, FAILS),
    ('{\\"score\\": 4}', Score, FAILS),
    ('"{\\"score\\": 4}"', Score, FAILS),
    ("{\u201cscore\u201d: 4}", Score, FAILS),
    ('I use {braces}: {"score": 4}', Score, FAILS),
    ('{"score": 4, "reason": "\ud800"}', Score, FAILS),
    ("{" * 100_000, Score, FAILS),
    ('{"a":' * 5000 + "1" + "}" * 5000, Score, FAILS),
    ("score: 4", Score, FAILS),
    ("4", Score, FAILS),
    ("", Score, FAILS),
    (" \n", Score, FAILS),
    ("```json\n```", Score, FAILS),
    ('<think>I would say {"score": 4}', Score, FAILS),
    ("I'm sorry, I can't help with that.", Score, FAILS),
    ("I cannot judge images of people.", Score, FAILS),
]


@pytest.mark.parametrize(("text", "model", "expected"), JSON)
def test_json(text, model, expected):
    found = read_json(Reply(text, "stop"), model)
    assert found.reply.text == text
    if expected is FAILS:
        assert isinstance(found, Failure)
        assert found.reason.isprintable()
        assert len(found.reason) < 300
    elif expected is not None:
        assert isinstance(found, Parsed), found
        assert found.value.score == expected
        assert type(found.value.score) is type(expected)


def test_nested_json_has_its_values():
    found = read_json(Reply('{"scores": {"a": 1}, "parts": [1, 2]}'), Nested)
    assert isinstance(found, Parsed)
    assert (found.value.scores, found.value.parts) == ({"a": 1}, (1, 2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Taken
        ("Final Score: 4.5", 4.5),
        ("final score: 4", 4.0),
        ("FINAL SCORE : 4", 4.0),
        ("**Final Score:** 4", 4.0),
        ("**Final Score**: 4", 4.0),
        ("**Final Score: 4**", 4.0),
        ("### Final Score: **4.5**", 4.5),
        ("__Final Score__: _4_", 4.0),
        ("`Final Score`: `4`", 4.0),
        ("Final_Score: 4", 4.0),
        ('{"Final Score": 4}', FAILS),
        ("Final  Score\uff1a4", 4.0),
        ("Final Score:\n\n4.5\n", 4.5),
        ("Final Score:\n**4/5**", 4.0),
        ("Final Score (1-5): 4", 4.0),
        ("Final Score: 4/5", 4.0),
        ("Final Score: **4** / 5", 4.0),
        ("Final Score: 4 out of 5", 4.0),
        ("Final Score: 4.", 4.0),
        ("Final Score: 4. The colours are right.", 4.0),
        ("(Final Score: 4)", 4.0),
        ("<answer>Final Score: 4</answer>", 4.0),
        ("Final Score: 4 (good)", 4.0),
        ("Final Score: 4\nFinal Score: 4.0", 4.0),
        ("<think>Final Score: 2</think>Final Score: 4", 4.0),
        ("Caption alignment is 3.\n\nFinal Score: 5", 5.0),
        # The number is read whole
        ("Final Score: 10", FAILS),
        ("Final Score: 45", FAILS),
        ("Final Score: 0", FAILS),
        ("Final Score: 5.01", FAILS),
        ("Final Score: -4", FAILS),
        ("Final Score: 4,5", FAILS),
        ("Final Score: 4.5.1", FAILS),
        ("Final Score: 4e0", FAILS),
        ("Final Score: 4x", FAILS),
        ("Final Score: 4\u00bd", FAILS),
        ("Final Score: 4 \u00bd", FAILS),
        ("Final Score: 1 000", FAILS),
        ("Final Score: 4_5", FAILS),
        ("Final Score: 4**5", FAILS),
        ("Final Score: 4%", FAILS),
        ("Final Score: 4 %", FAILS),
        ("Final Score: **4**%", FAILS),
        ("Final Score: 4 percent", FAILS),
        ("Final Score: 4-5", FAILS),
        ("Final Score: 4 - 5", FAILS),
        ("Final Score: 4\u20135", FAILS),
        ("Final Score: 4 to 5", FAILS),
        ("Final Score: 4 or 5", FAILS),
        ("Final Score: 3 + 1 = 4", FAILS),
        ("Final Score: 3 -> 4", FAILS),
        ("Final Score: ~4", FAILS),
        ("Final Score: \u0664", FAILS),
        ("Final Score: " + "9" * 5000, FAILS),
        # Another scale
        ("Final Score: 4/10", FAILS),
        ("Final Score: 8/10", FAILS),
        ("Final Score: **4**/10", FAILS),
        ("Final Score: 4 out of 10", FAILS),
        ("Final Score (1-10): 4", FAILS),
        ("Final Score (1.2.3-5): 4", FAILS),
        # None, or two
        ("Final Score: 4\nFinal Score: 3", FAILS),
        ("Final Score: 4\nFinal Score: <number>", FAILS),
        ("Final Score: [1-5]\nFinal Score: 4", FAILS),
        ("Final Score: four", FAILS),
        ("Final Score:", FAILS),
        ("Final Score:\n1. The colours\n2. The shapes", FAILS),
        ("Final Score 4", FAILS),
        ("Semi-Final Score: 4", FAILS),
        ("Score: 4", FAILS),
        ("4", FAILS),
        ("I'm sorry, but I can't rate this.", FAILS),
        ("", FAILS),
    ],
)
def test_labelled_number(text, expected):
    found = read_number(Reply(text, "stop"), "Final Score", 1, 5)
    if expected is FAILS:
        assert isinstance(found, Failure), found
    else:
        assert isinstance(found, Parsed), found
        assert found.value == expected


DIMENSIONS = "Alignment Score (1-5): 4\nCoherence Score (1-5): 3\n**Style Score (1-5):** 2.5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DIMENSIONS, {"Alignment Score": 4.0, "Style Score": 2.5}),
        (DIMENSIONS.replace("2.5", "10"), FAILS),
        (DIMENSIONS.replace("Style", "Other"), FAILS),
        (DIMENSIONS.replace("(1-5)", "(1-10)"), FAILS),
        (f"{DIMENSIONS}\nAlignment Score (1-5): 5", FAILS),
    ],
)
def test_dimensions(text, expected):
    found = read_dimensions(Reply(text), ["Alignment Score", "Style Score"], 1, 5)
    if expected is FAILS:
        assert isinstance(found, Failure)
    else:
        assert isinstance(found, Parsed)
        assert found.value == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>Image 1 is better</answer>", 1),
        ("<answer>Image 2 is better</answer>", 2),
        ("<think>Image 1 is better</think><answer>image 2 is better.</answer>", 2),
        ("<answer>\n**Image 1** is better\n</answer>", 1),
        ("<Answer>Image  1 is better than Image 2</Answer>", 1),
        ("<answer>Image 1 is better</answer><answer>Image 1 is better</answer>", 1),
        ("Image 2 loses.<answer>Image 1 is better</answer>", 1),
        ("<answer>Image 1 is better, Image 2 is better</answer>", FAILS),
        ("<answer>Image 1 is better</answer><answer>Image 2 is better</answer>", FAILS),
        ("<answer>Image 1 is better</answer><answer>neither</answer>", FAILS),
        ("<answer>It is not true that Image 1 is better</answer>", FAILS),
        ("<answer>Neither Image 1 is better nor worse</answer>", FAILS),
        ("<answer>Image 10 is better</answer>", FAILS),
        ("<answer>Image 3 is better</answer>", FAILS),
        ("<answer>They are equal</answer>", "tie"),
        ("<answer>Image 1 and Image 2 are equally good.</answer>", "tie"),
        ("<think>hard</think><answer>It is a **tie**</answer>", "tie"),
        ("<answer>Neither image is better</answer>", "tie"),
        ("<answer>Unclear.</answer>", "tie"),
        ("<answer>It is not a tie</answer>", FAILS),
        ("<answer>They aren't equally good</answer>", FAILS),
        ("<answer>Image 1 is better, a tie</answer>", FAILS),
        ("<answer>a tie</answer><answer>Image 2 is better</answer>", FAILS),
        ("<answer>Image 1 is unclear</answer>", "tie"),
        ("a tie", FAILS),
        ("<answer>1</answer>", FAILS),
        ("<answer></answer>", FAILS),
        ("<answer>Image 1 is better", FAILS),
        ("Image 1 is better", FAILS),
        ("<think><answer>Image 1 is better</answer></think>I cannot say.", FAILS),
        ("", FAILS),
    ],
)
def test_verdict(text, expected):
    found = read_verdict(Reply(text, "stop"))
    if expected is FAILS:
        assert isinstance(found, Failure)
    else:
        assert isinstance(found, Parsed), found
        assert found.value == expected


READERS = {
    "json": (lambda reply: read_json(reply, Score), '{"score": 4}'),
    "number": (lambda reply: read_number(reply, "Final Score", 1, 5), "Final Score: 4"),
    "dimensions": (lambda reply: read_dimensions(reply, ["A"], 1, 5), "A: 4"),
    "verdict": (read_verdict, "<answer>Image 1 is better</answer>"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("finish_reason", "refusal", "reason"),
    [
        ("length", None, "token limit"),
        ("content_filter", None, "content_filter"),
        ("tool_calls", None, "tool_calls"),
        ("abort", None, "abort"),
        ("stop", "I will not.\x1b[2J", "refused: I will not. [2J"),
    ],
)
def test_what_was_not_finished_is_a_failure_however_good_it_looks(
    name, finish_reason, refusal, reason
):
    read, good = READERS[name]
    assert isinstance(read(Reply(good, "stop")), Parsed)
    reply = Reply(good, finish_reason, refusal)
    found = read(reply)
    assert isinstance(found, Failure)
    assert reason in found.reason
    assert not found.repairable
    assert found.reply is reply


@settings(max_examples=100, deadline=None)
@given(st.text() | st.text(alphabet='{}[]":,01.-e/%<>* \nFinalScoreAnswerIg'))
@example("Final Score: 4/" + "9" * 400)
@example("Final Score (..-..): 4")
def test_no_text_makes_a_reader_raise(text):
    for read, good in READERS.values():
        for whole in (text, good + text, text + good):
            found = read(Reply(whole, "stop"))
            assert isinstance(found, Parsed | Failure)
            assert found.reply.text == whole


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(), st.none() | st.booleans() | st.integers(-9, 9) | st.text(), max_size=4
    ),
    st.integers(-3, 13),
    st.text(
        alphabet=st.characters(exclude_characters="{}[<", exclude_categories=("Cs",)), max_size=30
    ),
)
def test_a_score_among_words_is_itself_or_a_failure(others, score, words):
    text = f"{words}\n```json\n{json.dumps({**others, 'reason': words, 'score': score})}\n```"
    found = read_json(Reply(text, "stop"), Score)
    if isinstance(found, Parsed):
        assert found.value.score == score
        assert found.value.reason == words
    else:
        assert not 0 <= score <= 10


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (Reply(" Hello\nWorld \n"), "Hello\nWorld"),
        (Reply("<think>Is it an O?</think>HELLO", "stop"), "HELLO"),
        (Reply('{"a": 1}'), '{"a": 1}'),
    ],
)
def test_text_is_the_whole_answer(reply, text):
    assert read_text(reply) == Parsed(text, reply)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(""),
        Reply(" \n"),
        Reply("HELLO", "length"),
        Reply("HELLO", "content_filter"),
        Reply("", refusal="I will not"),
        Reply("<think>Is it an O?"),
        Reply("<think>Is it an O?</think> "),
    ],
)
def test_text_that_is_refused_cut_off_or_empty_is_a_failure(reply):
    failure = read_text(reply)
    assert isinstance(failure, Failure)
    assert failure.reason


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_verdict, "<answer>" * 125_000),
        (lambda reply: read_json(reply, Score), "{}" * 500_000),
        (lambda reply: read_number(reply, "Final Score", 1, 5), "Final Score: 4 " * 66_000),
    ],
    ids=["verdict", "json", "number"],
)
def test_a_megabyte_of_the_same_is_a_failure_at_once(read, text):
    """It is read by the thread that every other question waits for."""
    with at_once():
        assert isinstance(read(Reply(text)), Failure)


@given(st.lists(st.sampled_from(["<answer>", "</ANSWER>", "Image 1 is better", "\n"])))
def test_answers_are_what_a_lazy_pattern_finds(parts):
    text = "".join(parts)
    lazy = re.findall("<answer>(.*?)</answer>", text, re.IGNORECASE | re.DOTALL)
    assert tagged(text, "answer") == lazy
