"""Rewards of knowledge graphs: a judge's verdicts or the exact checker's, times readability."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import RewardsConfig
from atelier.data.graph_rows import graph_prompt
from atelier.data.render import render_objects
from atelier.data.scene_graphs import Link, SceneGraph
from atelier.data.scenes import SceneObject
from atelier.errors import ConfigError
from atelier.judge.answers import unfinished
from atelier.judge.replies import Failure, Parsed, Reply
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.registry import JUDGED, SCORERS
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.mmmg import VerdictsForm
from tests.support.judge_endpoint import judge_endpoint, said
from tests.support.oracle_judge import CONFIG, ScriptedJudge

# Golden values of the Qwen vision GRPO guide.
ELEMENTS = ["Sun", "Moon", "Cell wall"]
DEPENDENCIES = ["Requires(Moon, Sun)", "Defines(Sun, Moon)", "Causes(Change(Cell wall), Sun)"]
KEYS = (*ELEMENTS, *DEPENDENCIES)
GRAPH = {"elements": ELEMENTS, "dependencies": DEPENDENCIES}
SKY = {
    "key": "History_3",
    "knowledge_graph": GRAPH,
    "annotation": "The moon shines by the sun.",
}
YES = {"Sun", "Moon", "Requires(Moon, Sun)", "Causes(Change(Cell wall), Sun)"}
REPLY = "\n".join(f"- {key}: {'yes' if key in YES else 'no, it is not there'}" for key in KEYS)


PAIR_ROW = graph_prompt(
    SceneGraph(
        "preschool",
        "order",
        (SceneObject("circle", "red", (1, 0)), SceneObject("square", "blue", (1, 2))),
        (Link("TemporalOrder", 0, 1),),
    )
)


def made(judge, **settings):
    section = {"judge": "j", "regions": {"read_text": False}, **settings}
    return JUDGED["mmmg"](RewardsConfig.model_validate({"mmmg": section}).mmmg, judge)


def board(side):
    """A picture of side x side regions."""
    cells = (np.indices((side, side)).sum(axis=0) % 2 * 255).astype(np.uint8)
    size = (16 * side, 16 * side)
    return Image.fromarray(cells).resize(size, Image.Resampling.NEAREST).convert("RGB")


def scored(scorer, images=None, metadata=None):
    images = images or [Image.new("RGB", (64, 64), "white")]
    metadata = metadata or [SKY] * len(images)
    return scorer.score(ScoreBatch(images, ["x"] * len(images), metadata, [0] * len(images)))


# By a judge -------------------------------------------------------------------------------------


def test_golden_value_7_by_a_judge():
    judge = ScriptedJudge(lambda question: REPLY)
    scores = scored(made(judge))
    assert scores.values == [pytest.approx(2 / 3)]
    (seen,) = scores.details
    assert seen["dice"] == pytest.approx(2 / 3)
    assert seen["official"] == pytest.approx(0.444444, abs=1e-6)
    assert seen["node_jaccard"] == pytest.approx(2 / 3)
    assert seen["edge_jaccard"] == 0.5, "sun and moon are one edge without direction"
    assert (seen["regions"], seen["readability"]) == (0, 1)
    assert {*seen["shown"]} == YES
    assert {*seen["not_shown"]} == {*KEYS} - YES
    assert seen["unjudged"] == []
    assert seen["judge"] == [REPLY]
    (question,) = judge.asked
    assert all(f"- {key}\n" in question.prompt for key in KEYS)
    assert "The moon shines by the sun." in question.prompt


def test_crowded_pictures_score_less():
    """81 regions: (160 - 81) / 90."""
    scores = scored(made(ScriptedJudge(lambda question: REPLY)), [board(9), board(13)])
    assert scores.details[0]["regions"] == 81
    assert scores.values == [pytest.approx(79 / 90 * 2 / 3), 0]
    assert scores.details[1]["dice"] == pytest.approx(2 / 3)


def test_what_was_not_said_is_missing_and_not_denied():
    silent = scored(made(ScriptedJudge(lambda question: "I would rather not.")))
    assert isinstance(silent.values[0], Missing)
    assert "no line with one verdict for 6 of 6, such as Sun" in silent.values[0].reason
    denied = "\n".join(f"- {key}: no" for key in KEYS)
    assert scored(made(ScriptedJudge(lambda question: denied))).values == [0]
    published = made(ScriptedJudge(lambda question: "I would rather not."), parser="published")
    assert scored(published).values == [0], "as on the leaderboard"


def test_a_few_keys_may_lack_and_count_neither_way():
    part = "\n".join(line for line in REPLY.splitlines() if "Cell wall" not in line)
    strict = scored(made(ScriptedJudge(lambda question: part)))
    assert "no line with one verdict for 2 of 6, such as Cell wall" in strict.values[0].reason
    lenient = made(ScriptedJudge(lambda question: part), min_judged_share=0.6)
    scores = scored(lenient)
    # Two nodes and one of two edges are shown of what was judged: 2 x 3 / (4 + 3).
    assert scores.values == [pytest.approx(6 / 7)]
    assert scores.details[0]["unjudged"] == ["Cell wall", "Causes(Change(Cell wall), Sun)"]


# One part after the other ------------------------------------------------------------------------


def part(question):
    """P(yes) of the judge of golden value 7, asked about one part."""
    about = {
        "Sun": ": Sun?",
        "Moon": ": Moon?",
        "Requires(Moon, Sun)": "that moon needs or uses sun can be seen",
        "Causes(Change(Cell wall), Sun)": "that cell wall brings sun about can be seen",
    }
    return 0.9 if any(text in question.prompt for text in about.values()) else 0.2


def test_parts_are_asked_about_one_by_one():
    judge = ScriptedJudge(part)
    scores = scored(made(judge, ask="each"))
    assert scores.values == [pytest.approx(2 / 3)], "as by one reply"
    assert {*scores.details[0]["shown"]} == YES
    assert len(judge.asked) == len(KEYS)
    assert all(one.prompt.endswith("Answer yes or no.") for one in judge.asked)
    assert "Is it so in this image: sun illustrates or explains what moon is?" in " ".join(
        one.prompt for one in judge.asked
    )


def test_a_scene_graphs_own_questions_are_asked():
    judge = ScriptedJudge(lambda question: 0.1 if "left of" in question.prompt else 0.8)
    scores = scored(made(judge, ask="each"), metadata=[PAIR_ROW.metadata])
    assert [one.prompt for one in judge.asked] == [
        "Is there a red circle? Answer yes or no.",
        "Is there a blue square? Answer yes or no.",
        "Is the red circle left of the blue square? Answer yes or no.",
    ]
    # Two nodes and one edge; two nodes are shown.
    assert scores.values == [pytest.approx(4 / 5)]


def test_an_element_is_a_name_whatever_it_looks_like():
    """As a dependency the first two are malformed, and the third asks about something else."""
    elements = ["red circle (round)", "f(x)", "Contains(plant cell, wall)"]
    judge = ScriptedJudge(lambda question: 0.9)
    metadata = [{"knowledge_graph": {"elements": elements}}]
    assert scored(made(judge, ask="each"), metadata=metadata).values == [1]
    assert [one.prompt for one in judge.asked] == [
        f"Does this image show, clearly and explicitly: {name}? Answer yes or no."
        for name in elements
    ]


@pytest.mark.parametrize(("share", "value"), [(0.9, None), (0.6, 1.0)])
def test_a_part_without_an_answer_counts_neither_way(share, value):
    answers = iter([0.9, 0.8, None])
    judge = ScriptedJudge(lambda question: next(answers))
    scorer = made(judge, ask="each", min_judged_share=share)
    (found,) = scored(scorer, metadata=[PAIR_ROW.metadata]).values
    assert isinstance(found, Missing) if value is None else found == value


def test_pictures_keep_their_own_answers():
    answers = iter([0.9, 0.9, 0.9, *[0.9, 0.1, 0.1]])
    judge = ScriptedJudge(lambda question: next(answers))
    other = {"knowledge_graph": {"elements": []}}
    metadata = [PAIR_ROW.metadata, other, PAIR_ROW.metadata]
    scores = scored(made(judge, ask="each"), [Image.new("RGB", (64, 64))] * 3, metadata)
    assert scores.values[0] == 1
    assert isinstance(scores.values[1], Missing)
    assert scores.values[2] == pytest.approx(2 / 4), "one node of two nodes and an edge"


def test_several_measurements_are_averaged():
    denied = "\n".join(f"- {key}: no" for key in KEYS)
    scores = scored(made(ScriptedJudge(lambda question: [REPLY, denied, None])))
    assert scores.values == [pytest.approx(1 / 3)]
    assert {*scores.details[0]["shown"]} == YES, "of the first"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "has no knowledge graph"),
        ({"knowledge_graph": None}, "cannot be used: an object with elements"),
        (
            {
                "key": "Math_1",
                "knowledge_graph": {"elements": ["a"], "dependencies": ["Causes(a)"]},
            },
            r"cannot be used: Math_1: dependency 'Causes\(a\)'",
        ),
    ],
)
def test_a_prompt_without_a_graph_is_missing_and_nobody_is_asked(metadata, reason):
    judge = ScriptedJudge(lambda question: REPLY)
    images = [Image.new("RGB", (8, 8))] * 2
    scores = scored(made(judge), images, [metadata, SKY])
    assert isinstance(scores.values[0], Missing)
    assert re.search(reason, scores.values[0].reason)
    assert scores.values[1] == pytest.approx(2 / 3)
    assert len(judge.asked) == 1


def test_regions_that_cannot_be_counted_are_no_reason_to_pay(tmp_path):
    judge = ScriptedJudge(lambda question: REPLY)
    regions = {"counter": "sam2", "checkpoint": str(tmp_path / "none.pt")}
    scorer = made(judge, regions=regions)
    with pytest.raises(ConfigError, match=r"rewards\.mmmg\.regions\.checkpoint"):
        scored(scorer)

    Image.effect_noise((64, 64), 50).save(tmp_path / "cut.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "cut.png").read_bytes()[:500])
    with Image.open(tmp_path / "cut.png") as cut:
        (value,) = scored(made(judge), [cut]).values
    assert "regions could not be counted: OSError" in value.reason
    assert not judge.asked


def test_a_reply_that_lacks_verdicts_goes_back_to_the_judge_once():
    """Through the real client, from a real endpoint."""

    async def forgetful(call):
        return said(REPLY if call.is_repair else "## Description\nA sky.")

    with judge_endpoint() as endpoint:
        endpoint.acts(forgetful)
        config = JudgeConfig(placement="remote", urls=[endpoint.url], model="j", retries=0)
        judge = SharedJudge(config, "judges.j")
        try:
            assert scored(made(judge)).values == [pytest.approx(2 / 3)]
        finally:
            judge.close()
        assert len(endpoint.calls) == 2
        complaint = endpoint.calls[1].body["messages"][-1]["content"]
        assert "no line with one verdict for 6 of 6" in complaint


def test_the_form_of_verdicts():
    form = VerdictsForm(("Sun", "Rain"))
    assert form.read(Reply("- Sun: yes\n- Rain: no")) == Parsed(
        {"Sun": True, "Rain": False}, Reply("- Sun: yes\n- Rain: no")
    )
    lacking = form.read(Reply("- Sun: yes"))
    assert isinstance(lacking, Failure)
    assert lacking.repairable
    cut = Reply("- Sun: yes\n- Rain: no", finish_reason="length")
    for parser in ("strict", "published"):
        assert VerdictsForm(("Sun", "Rain"), parser).read(cut) == unfinished(cut)
    assert form.request(CONFIG) == {}


# By the exact checker ---------------------------------------------------------------------------

PAIR = SceneGraph(
    "preschool",
    "cause",
    (SceneObject("circle", "red", (0, 1)), SceneObject("square", "blue", (2, 1))),
    (Link("Causes", 0, 1),),
)


def test_scene_graphs_need_no_judge():
    scorer = SCORERS["scene_graph"](RewardsConfig.model_validate({"scene_graph": {}}).scene_graph)
    row = graph_prompt(PAIR)
    turned = [SceneObject("circle", "red", (2, 1)), SceneObject("square", "blue", (0, 1))]
    images = [
        render_objects(PAIR.objects),
        render_objects(turned),
        render_objects(PAIR.objects[:1]),
        Image.new("RGB", (64, 64), "white"),
    ]
    scores = scored(scorer, images, [row.metadata] * 4)
    assert scores.values == [1, pytest.approx(4 / 5), pytest.approx(2 / 4), 0]
    assert scores.details[1]["not_shown"] == ["Causes(red circle, blue square)"]
    assert [one["regions"] for one in scores.details] == [2, 2, 1, 0]
    assert all(one["official"] <= one["dice"] + 1e-9 for one in scores.details)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "has no scene graph"),
        ({"scene_graph": 3}, "its scene graph cannot be used"),
        ({"scene_graph": {"objects": []}}, "its scene graph cannot be used"),
    ],
)
def test_what_is_no_scene_graph_is_missing(metadata, reason):
    scorer = SCORERS["scene_graph"](RewardsConfig.model_validate({"scene_graph": {}}).scene_graph)
    (value,) = scored(scorer, metadata=[metadata]).values
    assert reason in value.reason


def test_a_service_of_another_reward_needs_none_of_their_packages():
    """One in an environment of its own imports the registry, and has neither."""
    code = "import sys, atelier.rewards.registry; print({'scipy', 'networkx'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_what_a_version_tells_apart():
    judge = ScriptedJudge(lambda question: REPLY)
    versions = {
        made(judge).version,
        made(judge, parser="published").version,
        made(judge, regions={}).version,
    }
    assert len(versions) == 3
