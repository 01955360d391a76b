"""Judged rewards meet judges that refuse, contradict themselves or say what is no answer: at an
endpoint, every score is right or missing."""

import json
from contextlib import contextmanager

import pytest
from fastapi.responses import HTMLResponse, JSONResponse, Response
from PIL import Image

from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import RewardsConfig
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.checks import checked
from atelier.rewards.registry import JUDGED
from atelier.rewards.scorers.judges import SharedJudge
from tests.support.judge_endpoint import dropped, error, judge_endpoint, said

NAMES = ("unified_reward_think", "unified_reward", "vlm_ocr", "complex_edit")
MB = 1_000_000
ANSI = "\x1b[31m{}\x1b[0m"
HTML = "<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>"
IMAGE_1, IMAGE_2 = (f"<answer>Image {one} is better</answer>" for one in (1, 2))
ALIGNED = {"reasoning": "x", "instruction_following": "7", "identity_preservation": "9"}
QUALITY = {"perceptual_quality": "8"}


@contextmanager
def scorer_of(name, endpoint, **settings):
    """The reward, with a judge at the endpoint that is not asked again."""
    section = RewardsConfig.model_validate({name: {"judge": "j", **settings}})
    parameters = {"retries": 0, "deadline": 20.0, "timeout": 10.0}
    config = JudgeConfig(placement="remote", urls=[endpoint.url], model="m", **parameters)
    scorer = JUDGED[name](getattr(section, name), SharedJudge(config, "judges.j"))
    try:
        yield scorer
    finally:
        scorer.close()


@pytest.fixture(scope="module")
def endpoint():
    with judge_endpoint() as found:
        yield found


def batch(count=2):
    images = [Image.new("RGB", (index + 8, 8)) for index in range(count)]
    return ScoreBatch(
        images,
        [f"prompt {index}" for index in range(count)],
        [{"target": "HELLO"}] * count,
        [0] * count,
        source_images=[Image.new("RGB", (99, 8))] * count,
    )


def scored(name, endpoint, script, **settings):
    """The scores as the run takes them, which always are as many as images."""

    async def says(call):
        return script(call)

    endpoint.acts(says)
    with scorer_of(name, endpoint, **settings) as scorer:
        scores = checked(scorer.score(batch()), 2)
    json.dumps(list(scores.details)).encode()  # they are written down
    return list(scores.values)


def right(name):
    """What a good judge says: the answer to a call of this reward."""

    def says(call):
        if name == "complex_edit":
            return ALIGNED if "instruction_following" in call.prompt else QUALITY
        return {"unified_reward_think": IMAGE_1, "unified_reward": "Final Score: 4"}.get(
            name, "HELLO"
        )

    return lambda call: as_text(says(call))


def as_text(said_):
    return said_ if isinstance(said_, str) else json.dumps(said_)


def expected(name):
    return {"unified_reward_think": 0.5, "unified_reward": 0.8, "vlm_ocr": 1.0}.get(name, 0.637)


@pytest.mark.parametrize("name", NAMES)
def test_a_good_judge_is_understood(endpoint, name):
    text = right(name)
    assert scored(name, endpoint, lambda call: said(text(call))) == pytest.approx(
        [expected(name)] * 2
    )


# However good the text looks, these are no answers.
NO_ANSWER = {
    "refused": lambda text: said(None, refusal="I cannot judge people."),
    "refused beside an answer": lambda text: said(text, refusal="I cannot judge people."),
    "null": lambda text: said(None),
    "empty": lambda text: said(""),
    "blank": lambda text: said(" \n\t\u3000"),
    "cut off": lambda text: said(text, finish_reason="length"),
    "filtered": lambda text: said(text, finish_reason="content_filter"),
    "a tool is called": lambda text: said(text, finish_reason="tool_calls"),
    "only thoughts": lambda text: said("<think>" + text),
    "thoughts without more": lambda text: said(f"<think>{text}</think>"),
    "a page": lambda text: HTMLResponse(HTML),
    "a page as a fault": lambda text: HTMLResponse(HTML, 502),
    "no body": lambda text: Response(b""),
    "half a body": lambda text: dropped(),
    "no JSON": lambda text: Response(b'{"choices": [', media_type="application/json"),
    "a list": lambda text: JSONResponse([]),
    "no choices": lambda text: JSONResponse({"choices": []}),
    "a number for a text": lambda text: JSONResponse(
        {"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}
    ),
    "a megabyte that is no JSON": lambda text: Response(b"\x1b[31m" * (MB // 5)),
    "413": lambda text: error(413),
    "500": lambda text: error(500, ANSI.format("no")),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", NO_ANSWER)
def test_what_is_no_answer_is_missing(endpoint, name, case):
    text = right(name)
    found = scored(name, endpoint, lambda call: NO_ANSWER[case](text(call)))
    assert all(isinstance(one, Missing) for one in found), found
    assert all(one.reason and len(one.reason) < 2000 for one in found)
    assert not any("\x1b" in one.reason for one in found)


@pytest.mark.parametrize("name", NAMES)
def test_one_bad_answer_costs_only_its_own_score(endpoint, name):
    text = right(name)

    def script(call):
        return said(None) if "prompt 0" in call.prompt else said(text(call))

    if name == "vlm_ocr":  # its question has no prompt: the first call is the bad one

        def script(call):
            return said(None) if call.nth == 1 else said(text(call))

    found = scored(name, endpoint, script)
    if name == "unified_reward_think":  # one order alone is the judge's liking for a place
        assert all(isinstance(one, Missing) and "0 of its 2" in one.reason for one in found)
        return
    (missing,) = (one for one in found if isinstance(one, Missing))
    assert "empty" in missing.reason
    assert [one for one in found if one is not missing] == [pytest.approx(expected(name))]


UNREADABLE = {
    "unified_reward_think": [
        IMAGE_1 + IMAGE_2,
        "<answer>Image 1 is better. Image 2 is better.</answer>",
        "<answer>Image 1 and Image 2 are not equally good</answer>",
        "<answer>Image 3 is better</answer>",
        "<answer>Image 1 is not better</answer>",
        "Image 1 is better",
        "<answer>Image 1 is better",
        "<answer></answer>",
        HTML,
        ANSI.format("Image 1 is better"),
        "<answer>" * (MB // 8),
        "Image 1 is better " * (MB // 18),
    ],
    "unified_reward": [
        "Final Score: 4\nFinal Score: 2",
        "Final Score: 4 or 5",
        "Final Score: 3-4",
        "Final Score: 0",
        "Final Score: 6",
        "Final Score: NaN",
        "Final Score: Infinity",
        "Final Score: 1e0",
        "Final Score: 40%",
        "Final Score: 8/10",
        "Final Score:",
        "4",
        HTML,
        "Final Score: " + ANSI.format(4),
        "Final Score: " + "4" * MB,
        "Final Score: " * (MB // 13),
        "Final Score: 4 " * (MB // 15),
        f"Final Score (1-{'9' * MB}): 4",
        "[" * MB,
    ],
    "complex_edit": [
        json.dumps({**ALIGNED, **QUALITY, "instruction_following": "11"}).replace('"8"', '"11"'),
        json.dumps({**ALIGNED, **QUALITY}) + json.dumps({"reasoning": "other"}),
        json.dumps({**ALIGNED, **QUALITY})[:-1],
        json.dumps([{**ALIGNED, **QUALITY}]),
        json.dumps({"reasoning": "x"}),
        json.dumps({"reasoning": "x", "instruction_following": 7, "perceptual_quality": 8}),
        "{" * MB,
        "{}" * (MB // 2),
        '{"a":' * (MB // 5),
        HTML,
        ANSI.format("{}"),
        "null",
    ],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name in UNREADABLE for text in UNREADABLE[name]],
    ids=lambda value: value[:30].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_what_is_ambiguous_is_missing(endpoint, name, text):
    found = scored(name, endpoint, lambda call: said(text))
    assert all(isinstance(one, Missing) for one in found), found
    assert all(len(one.reason) < 2000 and "\x1b" not in one.reason for one in found)


@pytest.mark.parametrize("both_orders", [True, False])
def test_a_judge_that_contradicts_itself_prefers_nobody(endpoint, both_orders):
    """The first, whoever it is: half a win for both where both orders are asked for."""
    found = scored("unified_reward_think", endpoint, lambda call: said(IMAGE_1))
    assert found == [0.5, 0.5]


def test_half_of_the_orders_answered_is_told_by_the_share(endpoint):
    def script(call):
        return said(IMAGE_1 if "prompt 0" in call.prompt else None)

    strict = scored("unified_reward_think", endpoint, script, min_answered_share=0.9)
    assert all(isinstance(one, Missing) for one in strict)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (ANSI.format("HELLO"), None),
        (HTML, 0.0),
        ("[no text]", 0.0),
        ("x" * MB, 0.0),
        ("HELLO" * (MB // 5), 1.0),
        ("\x00", 0.0),
        ("\ud800", 0.0),
    ],
    ids=["ansi", "html", "none", "megabyte", "right megabyte", "nul", "surrogate"],
)
def test_whatever_is_read_is_compared(endpoint, text, score):
    """Any text may stand in an image: the score is a similarity, in [0, 1]."""
    found = scored("vlm_ocr", endpoint, lambda call: said(text))
    assert found[0] == found[1]
    assert isinstance(found[0], Missing) or 0 <= found[0] <= 1
    if score is not None and not isinstance(found[0], Missing):
        assert found[0] == pytest.approx(score)
