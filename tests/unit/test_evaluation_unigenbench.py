"""Suite unigenbench: verdicts of judges and of gold, what has none, tables, files of verdicts."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from atelier.cli.application import application
from atelier.config.paths import repository_root
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.data.prompts import Prompt
from atelier.data.render import render
from atelier.data.scene_tables import scene_table
from atelier.data.scenes import from_dict
from atelier.errors import DataError, Stopped
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import read_evaluation, write_images
from atelier.evaluation.judgement_files import read_judgements
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.point_tables import Failures, Table, table
from atelier.evaluation.requests import image_requests
from atelier.evaluation.results import compare, restricted
from atelier.rewards.scorers.judges import SharedJudge
from atelier.tracking.run_directory import SUITE_TABLES
from tests.support.oracle_judge import ScriptedJudge

CONFIG = EvaluationConfig(suite="unigenbench", bootstrap_samples=200)
GOLDEN = {
    3: (["Style", "Attribute - Color", "Attribute - Size"], [1, 0, 1]),
    5: (["Attribute - Color", "Action - Non-contact Interaction"], [1, 1]),
    8: (["Text Generation", "Grammar - Negation"], [0, 0]),
    9: (["Style"], [0]),
}
CHINESE = {
    "Style": "风格",
    "Attribute - Color": "属性-颜色",
    "Attribute - Size": "属性-大小",
    "Action - Non-contact Interaction": "动作-实体间无接触互动",
    "Text Generation": "文本生成",
    "Grammar - Negation": "语法-否定",
}


def prompts_of(rows=GOLDEN, names=lambda one: one) -> list[Prompt]:
    return [
        Prompt(
            *(index, 0, f"prompt {index}"),
            {
                "testpoints": [names(one) for one in points],
                "descriptions": [f"{names(one)} of {index}" for one in points],
            },
        )
        for index, (points, _) in rows.items()
    ]


PROMPTS = prompts_of()


def blank(prompts=PROMPTS, config=CONFIG):
    return np.full((len(image_requests(prompts, config)), 64, 64, 3), 255, np.uint8)


def said(scores: list[int]) -> str:
    analysis = json.dumps([f"seen {place}" for place in range(len(scores))])
    return f"<analysis>{analysis}</analysis><score>{scores}</score>"


def index_in(question: Any) -> int:
    return next(one for one in GOLDEN if f"prompt {one}\n" in question.prompt)


def scripted(says=lambda index, nth: said(GOLDEN[index][1])) -> SuiteJudge:
    """Says what a function of the prompt's index and the number of the image gives."""
    asked: dict[int, int] = {}

    def answer(question: Any) -> str | None:
        index = index_in(question)
        asked[index] = asked.get(index, -1) + 1
        return says(index, asked[index])

    return SuiteJudge("j", "models/j", ScriptedJudge(answer))


def shares(found: Table) -> dict[str, tuple[float, int, float]]:
    return {one.name: (one.points.shown, one.points.judged, one.score.mean) for one in found.lines}


# Verdicts ----------------------------------------------------------------------------------------


def test_four_images_a_prompt_and_the_published_shares() -> None:
    """A golden value of DeepGen-RL."""
    judge = scripted()
    found = evaluate(blank(), PROMPTS, CONFIG, judge)
    assert len(judge.judge.asked) == len(found.rows) == 16
    assert {len(one.images) for one in judge.judge.asked} == {1}
    assert found.summary["headline"] == "judge_unigenbench"
    for metric, mean in {
        "judge_unigenbench": 0.5,
        "judge_unigenbench/attribute": 2 / 3,
        "judge_unigenbench/attribute_color": 0.5,
        "judge_unigenbench/attribute_size": 1,
        "judge_unigenbench/style": 0.5,
        "judge_unigenbench/action": 1,
        "judge_unigenbench/grammar_negation": 0,
        "judge_macro": (0.5 + 2 / 3 + 1 + 0 + 0) / 5,
        "judged": 1,
    }.items():
        assert found.mean(metric) == pytest.approx(mean), metric
    assert "gold_unigenbench" not in found.summary["metrics"]
    assert found.summary["metrics"]["judge_unigenbench"]["n"] == 4
    assert found.summary["metrics"]["judge_unigenbench/attribute_size"]["n"] == 1
    row = found.rows[0]
    assert row["image"] == "images/3_0.png"
    assert row["judge_unigenbench"] == pytest.approx(2 / 3)
    assert row["points"][1] == {
        **{"point": "Attribute - Color", "description": "Attribute - Color of 3"},
        **{"judge": 0.0, "gold": None, "remark": "seen 1"},
    }
    assert row["text"] == "not shown: Attribute - Color (Attribute - Color of 3)"


def test_chinese_points_are_scored_under_the_same_names() -> None:
    prompts = prompts_of(names=CHINESE.__getitem__)
    found = evaluate(blank(), prompts, CONFIG, scripted())
    english = evaluate(blank(), PROMPTS, CONFIG, scripted())
    assert found.summary["metrics"] == english.summary["metrics"]
    assert found.rows[0]["points"][1]["point"] == "属性-颜色"


@pytest.mark.parametrize("wrong", ["[1, 0]", "no", "<score>[1, 0, 1, 1]</score>", None])
def test_an_image_without_verdicts_is_told_and_never_zero(wrong: str | None) -> None:
    judge = scripted(lambda index, nth: wrong if index == 3 else said(GOLDEN[index][1]))
    found = evaluate(blank(), PROMPTS, CONFIG, judge)
    assert found.mean("judge_unigenbench/attribute") == 1
    assert found.mean("judge_unigenbench/style") == 0
    assert found.mean("judge_unigenbench") == pytest.approx(2 / 5)
    assert found.mean("judged") == 0.75
    assert found.summary["missing"] == 4
    failed = [one for one in found.rows if one["missing"]]
    assert [one["prompt_id"] for one in failed] == [3] * 4
    assert all(one["judge_unigenbench"] is None for one in failed)
    assert all(point["judge"] is None for one in failed for point in one["points"])
    assert failed[0]["said"] == [wrong or ""]
    silent = scripted(lambda index, nth: wrong)
    with pytest.raises(Stopped, match=r"judges\.j answered no question of the suite"):
        evaluate(blank(), PROMPTS, CONFIG, silent)


def test_images_that_were_judged_count_and_those_that_were_not_do_not() -> None:
    """Prompt 3 has one judged image, the others four: 3 points, and 4 x 5."""
    judge = scripted(lambda index, nth: None if index == 3 and nth else said(GOLDEN[index][1]))
    found = evaluate(blank(), PROMPTS, CONFIG, judge)
    assert found.mean("judge_unigenbench") == pytest.approx((2 + 4 * 2) / (3 + 4 * 5))
    assert found.mean("judge_unigenbench/style") == pytest.approx(1 / 5)
    whole = shares(table(found.rows, "judge", 100))
    assert whole["overall"] == (10, 23, pytest.approx(10 / 23))


def test_several_measurements_count_as_their_mean() -> None:
    judge = SuiteJudge(
        *("j", "m"), ScriptedJudge(lambda one: [said([1] * n(one)), said([0] * n(one)), "no"])
    )
    found = evaluate(blank(), PROMPTS, CONFIG, judge)
    assert found.mean("judge_unigenbench") == 0.5
    assert found.rows[0]["points"][0]["judge"] == 0.5


def n(question: Any) -> int:
    return len(GOLDEN[index_in(question)][0])


def test_before_and_after_are_paired_and_a_part_of_the_images_is_pooled_anew() -> None:
    before = evaluate(blank(), PROMPTS, CONFIG, scripted())
    after = evaluate(blank(), PROMPTS, CONFIG, scripted(lambda i, _: said([1] * len(GOLDEN[i][1]))))
    rows = {one.metric: one for one in compare(before, after, 200)}
    whole = rows["judge_unigenbench"]
    assert (whole.before, whole.after, whole.difference) == pytest.approx((0.5, 1, 0.5))
    assert rows["judge_macro"].difference == pytest.approx(1 - before.mean("judge_macro"))
    assert rows["judge_unigenbench/action"].difference == 0
    few = restricted(before, [one["image"] for one in before.rows if one["prompt_id"] in (3, 9)])
    assert few.mean("judge_unigenbench") == pytest.approx(2 / 4)
    assert few.mean("judge_macro") == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_a_yes_or_no_to_each_point_with_one_that_has_none() -> None:
    class Chances:
        config = ScriptedJudge.config

        def ask(self, questions):
            from atelier.judge.questions import Answer

            return [
                Answer(missing="away") if "Negation of 8" in one.prompt else
                Answer({"p_yes": 0.5 if "Size" in one.prompt else 0.8}, (0.8,))
                for one in questions
            ]  # fmt: skip

    question = "{point}|{definition}|{description}|{prompt}"
    config = CONFIG.model_copy(
        update={
            "unigenbench": CONFIG.unigenbench.model_copy(
                update={"ask": "each", "question": question}
            )
        }
    )
    found = evaluate(blank(), PROMPTS, config, SuiteJudge("j", "m", Chances()))
    row, _, _, _, _, _, _, _, failed, *_ = found.rows
    assert [one["judge"] for one in row["points"]] == [1, 1, 0]
    assert [one["remark"] for one in row["points"]] == [0.8, 0.8, 0.5]
    assert failed["missing"] == "away"
    assert failed["judged"] == 0
    assert found.mean("judge_unigenbench") == pytest.approx(5 / 6)
    assert found.summary["reader"] == "judge m, each"


SCENES = list(scene_table(DataConfig(scene_kind="mixed", heldout_prompts=6), "heldout"))


def drawn(prompts=SCENES, config=CONFIG):
    return np.stack(
        [
            np.asarray(render(from_dict(one.prompt.metadata["scene"]), random.Random(one.key(0))))
            for one in image_requests(prompts, config)
        ]
    )


def test_scenes_have_gold_and_the_embedded_judge_beside_it() -> None:
    images = drawn()
    images[::4] = 255
    alone = evaluate(images, SCENES, CONFIG)
    assert alone.summary["headline"] == "gold_unigenbench"
    assert alone.mean("gold_unigenbench") == pytest.approx(0.75)
    assert alone.mean("gold_unigenbench/text_generation") == pytest.approx(0.75)
    assert "judged" not in alone.summary["metrics"]
    config = EvaluationConfig.model_validate(
        {**CONFIG.model_dump(), "unigenbench": {"ask": "each"}}
    )
    shared = SharedJudge(
        JudgeConfig(model=str(repository_root() / "assets/tiny-judge"), placement="in_process"),
        "judges.scene",
    )
    found = evaluate(images, SCENES, config, SuiteJudge("scene", "tiny", shared))
    assert found.summary["headline"] == "judge_unigenbench"
    assert found.mean("gold_unigenbench") == pytest.approx(0.75)
    assert found.mean("judge_unigenbench") == pytest.approx(0.75, abs=0.05)
    assert found.mean("judged") == 1


def test_prompts_that_no_checker_knows_need_a_judge() -> None:
    with pytest.raises(DataError, match=r"has no scene.*evaluation\.unigenbench\.judge"):
        evaluate(blank(), PROMPTS, CONFIG)
    with pytest.raises(DataError, match="none of the 1 held-out prompts is one with test points"):
        image_requests([Prompt(0, 0, "x")], CONFIG)


# Tables ------------------------------------------------------------------------------------------


def deepgen(folder: Path, rows=GOLDEN, failed=(), names=lambda one: one) -> Path:
    """Verdicts as DeepGen-RL writes them: a failure has zeros."""
    path = folder / "unigenbench_scores.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["index", "dup_idx", "success", "testpoints", "scores", "raw_output"])
        for index, (points, scores) in rows.items():
            fine = index not in failed
            verdicts = scores if fine else [0] * len(scores)
            named = [names(one) for one in points]
            writer.writerow([index, 0, fine, str(named), str(verdicts), "<x>\n,"])
    return path


@pytest.mark.parametrize("names", [lambda one: one, CHINESE.__getitem__])
def test_the_table_of_a_file_equals_the_hand_worked_one(tmp_path: Path, names) -> None:
    found = table(read_judgements(deepgen(tmp_path, names=names)), "judge", 200)
    assert shares(found) == {
        "overall": (4, 8, 0.5),
        "macro": (4, 8, pytest.approx((0.5 + 2 / 3 + 1 + 0 + 0) / 5)),
        "Style": (1, 2, 0.5),
        "Attribute": (2, 3, pytest.approx(2 / 3)),
        "Attribute - Size": (1, 1, 1),
        "Attribute - Color": (1, 2, 0.5),
        "Action": (1, 1, 1),
        "Action - Non-contact Interaction": (1, 1, 1),
        "Grammar": (0, 1, 0),
        "Grammar - Negation": (0, 1, 0),
        "Text Generation": (0, 1, 0),
    }
    assert (found.images, found.judged_share) == (4, 1)


@pytest.mark.parametrize(
    ("failures", "overall", "attribute", "style"),
    [("zeros", (2, 8, 0.25), (1, 3), (0, 2)), ("left_out", (2, 5, 0.4), (1, 1), (0, 1))],
)
def test_both_published_conventions_of_what_cannot_be_read(
    tmp_path: Path, failures: Failures, overall, attribute, style
) -> None:
    """Golden value 11: the first row unparsable."""
    rows = read_judgements(deepgen(tmp_path, failed=(3,)))
    found = table(rows, "judge", 200, failures)
    lines = shares(found)
    assert lines["overall"] == overall
    assert lines["Attribute"][:2] == attribute
    assert lines["Style"][:2] == style
    assert [one["prompt_id"] for one in found.failures] == [3]
    assert found.judged_share == 0.75


def test_a_file_of_upstream_and_one_of_json_lines_say_the_same(tmp_path: Path) -> None:
    upstream = tmp_path / "model_en.csv"
    with upstream.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["index", "prompt", "testpoint", "output", "result_json", "img_path"])
        for index, (points, scores) in GOLDEN.items():
            result = json.dumps({"testpoint": points, "score": [bool(one) for one in scores]})
            for number in range(4):
                writer.writerow([index, "p", str(points), "x", result, f"m/{index}_{number}.png"])
    lines = tmp_path / "verdicts.jsonl"
    lines.write_text(
        "".join(
            json.dumps({"index": index, "dup_idx": n, "testpoints": points, "scores": scores})
            + "\n"
            for index, (points, scores) in GOLDEN.items()
            for n in range(4)
        )
    )
    assert read_judgements(upstream) == read_judgements(lines)
    found = shares(table(read_judgements(lines), "judge", 100))
    assert found["overall"] == (16, 32, 0.5)


GOOD = {"index": 1, "testpoints": ["Style", "Attribute - Color"], "scores": [1, 0]}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"index": -1}, "line 2: key 'index'"),
        ({"index": "x"}, "line 2: key 'index'"),
        ({"dup_idx": 0, "index": 0}, "line 2: image 0 of prompt 0 stands twice"),
        ({"testpoints": []}, "key 'testpoints': a list of names"),
        ({"testpoints": ["Style", "Colour"]}, "no test point is called 'Colour'"),
        ({"testpoints": ["Style", 3]}, "no test point is called"),
        ({"scores": [1]}, "key 'scores': a list of 2, one a test point"),
        ({"scores": [1, 2]}, "verdicts are 0 or 1, not 2"),
        ({"scores": [1, "1"]}, "verdicts are 0 or 1, not '1'"),
        ({"scores": [1, None]}, "verdicts are 0 or 1, not None"),
        ({"scores": "x"}, "key 'scores'"),
        ({"success": "maybe"}, "key 'success': true or false"),
        ({"success": 0}, "key 'success': true or false, not 0"),
        ({"success": 1.0}, "key 'success': true or false, not 1.0"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, changed: Any, why: str) -> None:
    path = tmp_path / "verdicts.jsonl"
    first = {**GOOD, "index": 0, "dup_idx": 0}
    path.write_text(f"{json.dumps(first)}\n{json.dumps(GOOD | changed)}\n")
    with pytest.raises(DataError) as error:
        read_judgements(path)
    assert why in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file is empty"),
        ("a,b\n1,2\n", "line 1: columns index, scores, testpoints or"),
        ("index,testpoints,scores\n", "no rows below the header"),
        ("index,testpoints,scores\n1,Style,[1]\n", "line 2: key 'testpoints': a list of names"),
        ("index,testpoints,scores\n1,\"['Style']\",[1\n", "line 2: key 'scores'"),
        ("index,testpoint,result_json\n1,['Style'],{\n", "line 2: key 'scores'"),
        ('index,testpoints,scores\n1,"x', "not CSV"),
    ],
)
def test_a_file_that_is_none_of_verdicts_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "verdicts.csv"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_judgements(path)
    assert why in str(error.value)


# Folders and the verb ----------------------------------------------------------------------------


def verb(*arguments: str) -> Result:
    return CliRunner().invoke(application, ["unigenbench", "table", *arguments])


def scored(folder: Path, judge: SuiteJudge) -> Path:
    folder.mkdir()
    write_images(folder, [one.file for one in image_requests(PROMPTS, CONFIG)], blank())
    found = score_folder(folder, PROMPTS, CONFIG, judge)
    assert read_evaluation(folder) == found
    return folder


def test_a_folder_holds_points_tables_failures_and_verdicts(tmp_path: Path) -> None:
    judge = scripted(lambda index, nth: "no" if (index, nth) == (5, 2) else said(GOLDEN[index][1]))
    folder = scored(tmp_path / "e", judge)
    kept = json.loads((folder / "unigenbench.json").read_text())
    assert kept.keys() == {"judge"}
    assert {one.name for one in folder.iterdir()} <= {
        *("images", "scores.jsonl", "summary.json", "grid.png"),
        *SUITE_TABLES,
    }
    metrics = read_evaluation(folder).summary["metrics"]
    overall, whole = kept["judge"]["scores"]["overall"], metrics["judge_unigenbench"]
    assert (overall["low"], overall["high"]) == (whole["low"], whole["high"]), "bootstrapped once"
    assert kept["judge"]["judged_share"] == 15 / 16
    assert kept["judge"]["scores"]["overall"]["points"] == 30
    assert kept["judge"]["scores"]["Attribute - Color"]["shown"] == 3
    (failure,) = kept["judge"]["failures"]
    assert (failure["image"], failure["prompt_id"]) == ("images/5_2.png", 5)
    assert "no <score>" in failure["missing"]
    again = shares(table(read_judgements(folder / "unigenbench_scores.csv"), "judge", 10))
    assert {name: one["score"] for name, one in kept["judge"]["scores"].items()} == {
        name: pytest.approx(mean) for name, (_, _, mean) in again.items()
    }
    lines = verb(str(folder)).output.splitlines()
    assert lines[0].split() == ["by", "judge", "points", "shown", "share", "(95", "%)"]
    assert lines[1].split()[:6] == ["All", "test", "points", "30", "14", "46.67"]
    assert any(line.split()[:4] == ["Color", "7", "3", "42.86"] for line in lines)
    assert "The mean is over 5 of 10 primary dimensions." in lines
    assert "16 images, 1 without verdicts, left out" in lines
    assert lines[-1].startswith("  prompt 5, image 2: no <score>")
    for name in ("unigenbench_scores.csv", "scores.jsonl"):
        assert verb(str(folder / name)).output == verb(str(folder)).output
    apart = deepgen(tmp_path, failed=(3,))
    theirs = Path(shutil.copyfile(apart, folder / "theirs.csv"))  # is read, wherever it lies
    assert verb(str(theirs)).output == verb(str(apart)).output


def test_the_verb_takes_files_by_either_convention(tmp_path: Path) -> None:
    path = str(deepgen(tmp_path, failed=(3,)))
    assert "25.00" in verb(path, "--failures", "zeros").output.splitlines()[1]
    left = verb(path).output.splitlines()
    assert "40.00" in left[1]
    assert "  prompt 3, image 0: no verdicts in the file" in left
    assert verb("").exit_code == 2
    assert "gold is for an evaluation" in verb(path, "--by", "gold").output


def test_an_evaluation_of_another_suite_and_damaged_rows_are_refused(tmp_path: Path) -> None:
    folder = scored(tmp_path / "e", scripted())
    assert "no image has verdicts by gold" in str(verb(str(folder), "--by", "gold").exception)
    rows = [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]
    for changed, why in (
        ({"points": []}, "row 2: key 'points'"),
        ({"points": [{"point": "Colour", "judge": 1, "gold": None}]}, "'Colour'"),
        ({"points": [{"point": "Style", "judge": 7, "gold": None}]}, "key 'judge'"),
        ({"points": [{"point": "Style", "gold": None}]}, "no key 'judge'"),
        ({"points": [{"point": "Style", "judge": 1, "gold": None, "x": 1}]}, "unknown key 'x'"),
        ({"prompt_id": None}, "key 'prompt_id'"),
    ):
        lines = [rows[0], rows[1] | changed, *rows[2:]]
        (folder / "scores.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        found = verb(str(folder))
        assert isinstance(found.exception, DataError), found.output
        assert why in str(found.exception)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "suite": "mmmg"}))
    assert "by the suite mmmg, not unigenbench" in str(verb(str(folder)).exception)
