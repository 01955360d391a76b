"""Suite complex_edit: what edited, copied and unjudged pictures are worth, by gold and by a judge
that a test scripts; its table of levels and origins."""

from __future__ import annotations

import asyncio
import json
import random
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from atelier.cli.application import application
from atelier.config.resolve import resolve
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.data.edit_rows import edit_of
from atelier.data.ground_truth import ground_truth_image, source_image
from atelier.data.prompts import Prompt
from atelier.data.readers.complex_edit import read
from atelier.data.scene_tables import scene_table
from atelier.errors import ConfigError, DataError, Stopped
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import read_evaluation, write_images
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import image_requests
from atelier.evaluation.suites.complex_edit import table
from atelier.rewards.scorers.judges import SharedJudge
from tests.support.complex_edit import write_json
from tests.support.judge_endpoint import Call, choice_of, judge_endpoint, said_in_choices
from tests.support.oracle_judge import ScriptedJudge

CONFIG = EvaluationConfig(suite="complex_edit", bootstrap_samples=200)
EDITS = {"scene_kind": "shapes", "scene_task": "edit", "edit_levels": "1-8", "heldout_prompts": 32}
PROMPTS = list(scene_table(DataConfig.model_validate(EDITS), "heldout"))


def arrays(pictures: Any) -> Any:
    return np.stack([np.asarray(one) for one in pictures])


def edited_as_told(prompts=PROMPTS):
    return arrays(ground_truth_image(one) for one in prompts)


def alignment(following: int, preserving: int) -> str:
    marks = {"instruction_following": str(following), "identity_preservation": str(preserving)}
    return json.dumps({"reasoning": "x", **marks})


def scripted(following=7, preserving=9, quality=8) -> SuiteJudge:
    def says(question):
        alone = len(question.images) == 1
        if alone:
            return json.dumps({"perceptual_quality": str(quality)})
        return alignment(following, preserving)

    return SuiteJudge("j", "models/j", ScriptedJudge(says))


def test_edits_as_told_of_every_level() -> None:
    found = evaluate(edited_as_told(), PROMPTS, CONFIG)
    for metric in ("gold_edited", "gold_following", "gold_preserving", "gold"):
        assert found.mean(metric) == 1
    assert found.summary["headline"] == "gold_edited"
    parts = {name for name in found.summary["metrics"] if "/" in name}
    assert parts == {f"gold_edited/c{level}" for level in range(1, 9)}
    assert all(one["text"] == "all right" for one in found.rows)


def test_a_copy_of_the_source_follows_nothing_and_keeps_all() -> None:
    found = evaluate(arrays(source_image(one) for one in PROMPTS), PROMPTS, CONFIG)
    assert found.mean("gold_following") == found.mean("gold_edited") == 0
    assert found.mean("gold_preserving/c8") is None
    assert found.mean("gold_preserving") > 0.9
    assert found.rows[7]["text"].startswith("step 1 was not taken (")


def test_a_judge_is_asked_as_the_reward_asks_and_gold_stands_beside_it() -> None:
    judge = scripted()
    found = evaluate(edited_as_told(PROMPTS[:8]), PROMPTS[:8], CONFIG, judge)
    assert len(judge.judge.asked) == 16
    assert [len(one.images) for one in judge.judge.asked[:2]] == [2, 1]
    assert PROMPTS[0].text in judge.judge.asked[0].prompt
    assert judge.judge.asked[0].images[0].tobytes() == source_image(PROMPTS[0]).tobytes()
    assert found.summary["headline"] == found.summary["image_score"] == "judge_overall"
    row = found.rows[0]
    assert row["judge_overall"] == pytest.approx(0.8)
    assert (row["judge_following"], row["judge_preserving"], row["judge_quality"]) == (
        *(0.7, 0.9),
        0.8,
    )
    assert row["judge_edited"] == pytest.approx(sqrt(0.63))
    assert row["gold_edited"] == 1
    assert found.mean("judge_overall/c3") == pytest.approx(0.8)


def test_an_image_without_marks_is_missing_and_a_silent_judge_stops() -> None:
    few = PROMPTS[:4]
    right = [alignment(7, 9), '{"perceptual_quality": "8"}']
    replies = iter([right[0], None, None, right[1], *right, *right])
    judge = SuiteJudge("j", "models/j", ScriptedJudge(lambda question: next(replies)))
    found = evaluate(edited_as_told(few), few, CONFIG, judge)
    assert [one["judge_overall"] for one in found.rows] == [None, None, *[pytest.approx(0.8)] * 2]
    assert [bool(one["missing"]) for one in found.rows] == [True, True, False, False]
    assert found.summary["missing"] == 2
    assert found.summary["metrics"]["judge_overall"]["n"] == 2
    assert found.summary["metrics"]["gold_edited"]["n"] == 4
    silent = SuiteJudge("j", "models/j", ScriptedJudge(lambda question: None))
    with pytest.raises(Stopped, match=r"judges\.j answered no question of the suite"):
        evaluate(edited_as_told(few), few, CONFIG, silent)


def of_pictures(folder: Path, origins=("real", "syn")) -> list[Prompt]:
    """Three pictures of each origin with two levels, as the reader gives them."""
    found: list[Prompt] = []
    for origin in origins:
        (folder / origin).mkdir()
        rows = read(write_json(folder / origin / f"test_{origin}.jsonl", range(3)))
        for one in rows:
            if one.metadata["level"] in (1, 3):
                found.append(Prompt(len(found), 0, one.text, one.metadata))
    return found


def test_edits_that_no_checker_knows_need_a_judge(tmp_path: Path) -> None:
    prompts = of_pictures(tmp_path, ("real",))
    images = np.full((len(prompts), 64, 64, 3), 255, np.uint8)
    with pytest.raises(DataError, match=r"no edit of a scene.*evaluation\.complex_edit\.judge"):
        evaluate(images, prompts, CONFIG)
    found = evaluate(images, prompts, CONFIG, scripted())
    assert {name for name in found.summary["metrics"] if "/" in name} == {
        f"judge_overall/{one}" for one in ("c1", "c3", "real")
    }
    assert "gold_edited" not in found.summary["metrics"]
    with pytest.raises(DataError, match="none of the 1 held-out prompts is an instruction"):
        image_requests([Prompt(0, 0, "x", {"source_image": "a.png"})], CONFIG)


def test_the_table_has_means_by_origin_and_level() -> None:
    """A golden value: overall 8.5 and 6.666667, of the split 7.583333."""
    overall = {8.5: (9, 8, 8.5), 20 / 3: (4, 9, 7)}
    rows = [
        {
            **{"prompt_id": number, "dataset_id": 0, "level": 1, "origin": "real"},
            **{"judge_overall": whole / 10, "judge_edited": 0.5},
            **{
                f"judge_{name}": mark / 10
                for name, mark in zip(("following", "preserving", "quality"), marks, strict=True)
            },
        }
        for number, (whole, marks) in enumerate(overall.items())
    ]
    level, split = table(rows, "judge", 200)
    assert (level.origin, level.level, split.origin, split.level) == ("real", 1, "real", None)
    assert 10 * split.means["overall"].mean == pytest.approx(7.583333, abs=1e-6)
    assert 10 * split.means["following"].mean == pytest.approx(6.5)
    other = [{**one, "prompt_id": 7, "origin": "syn", "level": 3} for one in rows[:1]]
    unjudged = {**rows[0], "prompt_id": 8}
    unjudged |= {name: None for name in rows[0] if name.startswith("judge_")}
    found = table([*rows, *other, unjudged], "judge", 200)
    assert [(one.origin, one.level, one.images, one.missing) for one in found] == [
        *(("real", 1, 3, 1), ("real", None, 3, 1), ("syn", 3, 1, 0), ("syn", None, 1, 0)),
        *((None, 1, 3, 1), (None, 3, 1, 0), (None, None, 4, 1)),
    ]
    assert found[-1].means["overall"].n == 3
    assert table([unjudged], "judge", 200)[0].means["overall"] is None


def test_a_folder_holds_all_three_marks_and_the_verb_shows_them(tmp_path: Path) -> None:
    """Published, the last file of an evaluation has the quality alone."""
    prompts = of_pictures(tmp_path)
    folder = tmp_path / "evaluation"
    folder.mkdir()
    images = np.full((len(prompts), 64, 64, 3), 255, np.uint8)
    write_images(folder, [one.file for one in image_requests(prompts, CONFIG)], images)
    found = score_folder(folder, prompts, CONFIG, scripted())
    assert read_evaluation(folder) == found
    kept = json.loads((folder / "complex_edit.json").read_text())
    assert kept.keys() == {"judge"}
    assert len(kept["judge"]) == 3 * 3
    last = kept["judge"][-1]
    assert (last["origin"], last["level"], last["images"], last["missing"]) == (None, None, 12, 0)
    means = {name: one["mean"] for name, one in last["means"].items()}
    assert means == pytest.approx(
        {"overall": 0.8, "edited": sqrt(0.63), "following": 0.7, "preserving": 0.9, "quality": 0.8}
    )
    result = CliRunner().invoke(application, ["complex-edit", "summary", str(folder)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split()[:6] == ["by", "judge", "images", "IF", "IP", "PQ"]
    first = [" ".join(line.split()[:2]) for line in lines[1:10]]
    assert first == [
        *("real C1", "real C3", "real 6", "syn C1", "syn C3", "syn 6"),
        *("all C1", "all C3", "all 12"),
    ]
    assert lines[1].split()[3:7] == ["7.00", "(7.00", "to", "7.00)"]
    assert lines[10] == "12 images, 0 without a score"
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "suite": "editing"}))
    refused = CliRunner().invoke(application, ["complex-edit", "summary", str(folder)])
    assert "by the suite editing, not complex_edit" in str(refused.exception)


def test_images_keep_their_own_marks_whatever_the_latency() -> None:
    """Published, results come as they end and are laid beside sorted names."""

    async def script(call: Call):
        await asyncio.sleep(random.random() * 0.03)
        if "perceptual_quality" in call.prompt:
            return said_in_choices([choice_of('{"perceptual_quality": "6"}')] * 2)
        number = next(n for n, one in enumerate(PROMPTS[:8]) if f"{one.text}\n" in call.prompt)
        return said_in_choices([choice_of(alignment(number, 10))] * 2)

    with judge_endpoint() as endpoint:
        endpoint.acts(script)
        settings = {"measurements": 4, "choices": 2, "concurrency": 16}
        judge = JudgeConfig.model_validate(
            {"placement": "remote", "urls": [endpoint.url], "model": "m", **settings}
        )
        shared = SharedJudge(judge, "judges.j")
        found = evaluate(
            edited_as_told(PROMPTS[:8]), PROMPTS[:8], CONFIG, SuiteJudge("j", "m", shared)
        )
        shared.close()
    assert [one["judge_following"] for one in found.rows] == [n / 10 for n in range(8)]
    assert {one["judge_preserving"] for one in found.rows} == {1}


ROW = {"number": 0, "level": 3, "prompt_id": 0, "image": "images/0.png"} | {
    f"judge_{one}": 0.5 for one in ("overall", "edited", "following", "preserving", "quality")
}


def shown(folder: Path, row: Any, **more: Any) -> Result:
    """What the verb says of an evaluation of one image."""
    summary = {"images": 1, "suite": "complex_edit", "headline": "judge_overall", **more}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "scores.jsonl").write_text(json.dumps(row) + "\n")
    return CliRunner().invoke(application, ["complex-edit", "summary", str(folder)])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt_id": None}, "key 'prompt_id'"),
        ({"level": 9}, "key 'level'"),
        ({"level": None}, "key 'level'"),
        ({"origin": "\x1b[31m"}, "key 'origin'"),
        ({"judge_overall": 7}, "key 'judge_overall'"),
        ({"judge_quality": "x"}, "key 'judge_quality'"),
    ],
)
def test_a_damaged_row_is_named_with_its_key(tmp_path: Path, changed: Any, said: str) -> None:
    assert shown(tmp_path, ROW).exit_code == 0, shown(tmp_path, ROW).exception
    found = shown(tmp_path, ROW | changed)
    assert isinstance(found.exception, DataError)
    assert f"scores.jsonl: row 1: {said}" in str(found.exception)


def test_a_summary_may_not_say_how_often_it_was_resampled_but_says_nothing_else(
    tmp_path: Path,
) -> None:
    assert "sqrt(IF IP)" in shown(tmp_path, ROW).output
    for damaged in ("x", 0, None, True):
        found = shown(tmp_path, ROW, bootstrap_samples=damaged)
        assert isinstance(found.exception, DataError)
        assert "summary.json: bootstrap_samples" in str(found.exception)


def test_a_judge_of_yes_and_no_is_refused() -> None:
    judge = "judges.j={model: assets/tiny-judge, placement: in_process}"
    with pytest.raises(ConfigError, match=r"evaluation\.complex_edit\.judge: .*needs words"):
        resolve("tiny/base", (judge, "evaluation.complex_edit.judge=j"), Path("/dev/null"))


def test_the_edits_of_the_prompts_are_of_the_levels_they_name() -> None:
    assert [one.metadata["level"] for one in PROMPTS] == [*range(1, 9)] * 4
    assert all(edit_of(one) is not None for one in PROMPTS)
