"""Suite mmmg: what faultless, wrong and unjudged pictures of scene graphs are worth, by gold and by
a judge that a test scripts; its table."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.graph_rows import graph_of
from atelier.data.prompts import Prompt
from atelier.data.render import render_objects
from atelier.data.scene_graphs import DISCIPLINES
from atelier.data.scene_tables import scene_table
from atelier.errors import DataError, Stopped
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import read_evaluation, write_images
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import image_requests
from atelier.evaluation.results import compare
from atelier.mmmg.benchmark import TIERS
from tests.support.oracle_judge import ScriptedJudge

CONFIG = EvaluationConfig(
    suite="mmmg", bootstrap_samples=200, mmmg={"regions": {"read_text": False}}
)
PROMPTS = list(
    scene_table(DataConfig(scene_kind="shapes", scene_task="graph", heldout_prompts=48), "heldout")
)


def drawn(prompts=PROMPTS, config=CONFIG):
    """A faultless picture for every request."""
    requests = image_requests(prompts, config)
    pictures = [
        render_objects(graph_of(one.prompt).objects, random.Random(one.key(0))) for one in requests
    ]
    return np.stack([np.asarray(one) for one in pictures])


def scripted(says):
    return SuiteJudge("j", "models/j", ScriptedJudge(says))


def denying(*keys):
    """A judge that sees everything but these keys, of whatever graph."""

    def says(question):
        lines = [f"- {key}: {'no' if key in keys else 'yes'}" for key in question.form.keys]
        return "\n".join(lines)

    return says


def test_faultless_pictures_of_every_tier():
    found = evaluate(drawn(), PROMPTS, CONFIG)
    for metric in ("gold_mmmg", "gold_official", "gold_fidelity", "gold", "readability"):
        assert found.mean(metric) == 1
    assert found.summary["headline"] == found.summary["image_score"] == "gold_mmmg"
    assert found.summary["reader"] == "gold, classical-1"
    assert {name for name in found.summary["metrics"] if "/" in name} == {
        f"gold_mmmg/{tier.lower()}" for tier in TIERS
    }
    assert all(one["text"] == "all shown" for one in found.rows)
    assert found.mean("regions") == pytest.approx(np.mean([2, 3, 4, 5, 6, 7]))


def test_the_mean_is_of_the_tiers_means():
    """The preschool's pictures are empty, and there are more of them: one tier of six."""
    prompts = [*PROMPTS, *(Prompt(100 + index, 0, "x", PROMPTS[0].metadata) for index in range(50))]
    images = drawn(prompts)
    images[[one.metadata["tier"] == "preschool" for one in prompts]] = 255
    found = evaluate(images, prompts, CONFIG)
    assert found.mean("gold_mmmg") == pytest.approx(5 / 6)
    assert found.mean("gold_mmmg/preschool") == 0
    assert found.rows[0]["text"].startswith("not shown: ")
    gain = {one.metric: one for one in compare(found, evaluate(drawn(prompts), prompts, CONFIG))}
    assert gain["gold_mmmg"].difference == pytest.approx(1 / 6)


def test_a_judge_is_asked_as_the_reward_asks_and_gold_stands_beside_it():
    first = PROMPTS[0].metadata["knowledge_graph"]
    judge = scripted(denying(first["dependencies"][0]))
    found = evaluate(drawn(PROMPTS[:4]), PROMPTS[:4], CONFIG, judge)
    assert len(judge.judge.asked) == 4
    assert PROMPTS[0].metadata["annotation"] in judge.judge.asked[0].prompt
    assert found.summary["headline"] == "judge_mmmg"
    assert found.summary["reader"] == "judge models/j, classical-1"
    row = found.rows[0]
    assert row["judge_mmmg"] == row["judge_fidelity"] == pytest.approx(4 / 5)
    assert (row["judge_node_jaccard"], row["judge_edge_jaccard"]) == (1, 0)
    assert row["gold_mmmg"] == 1
    assert row["text"] == f"not shown: {first['dependencies'][0]}"
    assert found.rows[1]["judge_mmmg"] == 1


def test_an_image_without_verdicts_is_missing_and_a_silent_judge_stops():
    few = PROMPTS[:4]
    replies = iter([None, "I see a lot.", *[denying()] * 2])
    judge = scripted(lambda question: one(question) if callable(one := next(replies)) else one)
    found = evaluate(drawn(few), few, CONFIG, judge)
    assert [one["judge_mmmg"] for one in found.rows] == [None, None, 1, 1]
    assert found.summary["missing"] == 2
    assert found.summary["metrics"]["judge_mmmg"]["n"] == 2
    assert found.rows[1]["missing"].startswith("no line with one verdict for 3 of 3")
    assert found.summary["metrics"]["gold_mmmg"]["n"] == 4
    with pytest.raises(Stopped, match=r"judges\.j answered no question of the suite"):
        evaluate(drawn(few), few, CONFIG, scripted(lambda question: None))


def test_graphs_that_no_checker_knows_need_a_judge():
    graph = {"knowledge_graph": {"elements": ["sun"]}, "tier": "PhD", "discipline": "Math"}
    prompts = [Prompt(7, 0, "a sun", {**graph, "key": "Math_1"})]
    image = np.full((1, 64, 64, 3), 255, np.uint8)
    with pytest.raises(DataError, match=r"prompt 7 has no scene graph.*evaluation\.mmmg\.judge"):
        evaluate(image, prompts, CONFIG)
    found = evaluate(image, prompts, CONFIG, scripted(denying()))
    assert found.mean("judge_mmmg") == 1
    assert found.rows[0]["key"] == "Math_1"
    assert "gold_mmmg" not in found.summary["metrics"]
    with pytest.raises(DataError, match="none of the 1 held-out prompts is one with a knowledge"):
        image_requests([Prompt(0, 0, "a dog")], CONFIG)


def test_a_folder_holds_the_tables_and_the_verb_shows_them(tmp_path):
    images = drawn()
    images[4] = 255  # of primaryschool, order
    write_images(tmp_path, [one.file for one in image_requests(PROMPTS, CONFIG)], images)
    found = score_folder(tmp_path, PROMPTS, CONFIG)
    assert read_evaluation(tmp_path) == found
    kept = json.loads((tmp_path / "mmmg.json").read_text())
    assert kept.keys() == {"gold_mmmg", "gold_official", "gold_fidelity"}
    own = kept["gold_mmmg"]
    assert own["cells"]["primaryschool"]["order"] == {"mean": 0.5, "n": 2, "missing": 0}
    assert own["tiers"]["primaryschool"]["mean"] == pytest.approx(7 / 8)
    assert own["leaderboard"] == pytest.approx(100 * found.mean("gold_mmmg"))
    assert own["micro"] == {"mean": pytest.approx(47 / 48), "n": 48, "missing": 0}
    result = CliRunner().invoke(application, ["mmmg", "summary", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["gold_mmmg", *TIERS, "All"]
    assert [line.split()[0] for line in lines[1:6]] == [*DISCIPLINES, "All"]
    assert lines[1].split()[1:3] == ["100.00", "50.00"]
    assert lines[5].split()[2] == "87.50"
    assert lines[6] == "Avg 97.92, over 6 of 6 tiers"
    assert lines[7] == "48 images, 0 without a score"
    assert len(lines) == 8
    other = CliRunner().invoke(
        application, ["mmmg", "summary", str(tmp_path), "--score", "official", "--by", "judge"]
    )
    assert "0 images, 48 without a score" in other.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "suite": "ocr"}))
    refused = CliRunner().invoke(application, ["mmmg", "summary", str(tmp_path)])
    assert isinstance(refused.exception, DataError)
    assert "by the suite ocr, not mmmg" in str(refused.exception)


def test_the_verb_says_what_of_the_benchmark_is_there(tmp_path):
    graph = {"knowledge_graph": {"elements": ["sun"]}, "tier": "PhD", "discipline": "Math"}
    prompts = [Prompt(index, 0, f"sun {index}", graph) for index in range(3)]
    images = np.full((3, 64, 64, 3), 255, np.uint8)
    write_images(tmp_path, [one.file for one in image_requests(prompts, CONFIG)], images)
    score_folder(tmp_path, prompts, CONFIG, scripted(denying()))
    result = CliRunner().invoke(application, ["mmmg", "summary", str(tmp_path)])
    assert result.output.splitlines()[-3:] == [
        "Avg 100.00, over 1 of 6 tiers",
        "3 images, 0 without a score",
        "Not all of MMMG: 3 samples in 1 cells, published: 4456 in 59",
    ]


ROW = {"number": 0, "tier": "preschool", "discipline": "Math", "judge_mmmg": 0.5}
SUMMARY = {"images": 1, "suite": "mmmg", "headline": "judge_mmmg"}


def shown(folder, summary=SUMMARY, row=ROW):
    """What the verb says of a folder of these."""
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "scores.jsonl").write_text(json.dumps(row) + "\n")
    return CliRunner().invoke(application, ["mmmg", "summary", str(folder)])


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({}, "summary.json: images"),
        ([], "summary.json: expected a JSON object"),
        (None, "summary.json: expected a JSON object"),
        (SUMMARY | {"images": "1"}, "summary.json: images"),
        (SUMMARY | {"headline": 5}, "summary.json: headline"),
        (SUMMARY | {"headline": "evil_x"}, "no headline of this suite: 'evil_x'; give --by"),
        ({"images": 1, "suite": "mmmg"}, "no headline of this suite"),
        (SUMMARY | {"metrics": {"judge_mmmg": 1}}, "summary.json: metrics.judge_mmmg"),
        (SUMMARY | {"metrics": {"a": {"mean": float("nan")}}}, "summary.json: metrics.a.mean"),
    ],
)
def test_a_damaged_summary_is_named_with_its_key(tmp_path, summary, said):
    found = shown(tmp_path, summary)
    assert isinstance(found.exception, DataError)
    assert said in str(found.exception)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tier": None}, "key 'tier'"),
        ({"tier": ["a"]}, "key 'tier'"),
        ({"tier": "\x1b[31m" + "x" * 50}, "key 'tier'"),
        ({"discipline": 3}, "key 'discipline'"),
        ({"number": "0"}, "key 'number'"),
        ({"judge_mmmg": "x"}, "key 'judge_mmmg'"),
        ({"judge_mmmg": 7}, "key 'judge_mmmg'"),
        ({"judge_mmmg": float("nan")}, "judge_mmmg is nan"),
        ({"judge_official": float("-inf")}, "judge_official is -inf"),
    ],
)
def test_a_damaged_row_is_named_with_its_key(tmp_path, changed, said):
    assert shown(tmp_path).exit_code == 0
    found = shown(tmp_path, row=ROW | changed)
    assert isinstance(found.exception, DataError)
    assert f"scores.jsonl: row 1: {said}" in str(found.exception)
    assert str(found.exception).isprintable()


def test_a_row_without_the_column_is_named(tmp_path):
    without = {key: value for key, value in ROW.items() if key != "judge_mmmg"}
    for row in ({}, without):
        found = shown(tmp_path, row=row)
        assert isinstance(found.exception, DataError)
        assert "row 1: no key 'judge_mmmg'" in str(found.exception)
