"""Held-out prompts of several data sets: every image has its own file and its own verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.prompts import Prompt
from atelier.errors import DataError
from atelier.evaluation.evaluate import score_folder
from atelier.evaluation.files import write_images
from atelier.evaluation.judgement_files import read_judgements
from atelier.evaluation.point_tables import table
from atelier.evaluation.requests import evaluated, image_requests
from tests.unit.test_evaluation_suites import pairs
from tests.unit.test_evaluation_unigenbench import CONFIG, PROMPTS, blank, scripted, shares

OTHERS = [Prompt(one.prompt_id, 1, one.text, one.metadata) for one in PROMPTS]
BOTH = [*PROMPTS, *OTHERS]


def test_images_of_two_sets_with_equal_numbers_are_different_files() -> None:
    files = [one.file for one in image_requests(BOTH, CONFIG)]
    assert len(set(files)) == len(files) == 32
    assert files[0] == "images/3_0.png"
    assert files[16] == "images/1_3_0.png"
    # A periodic evaluation of one of them alone calls them the same.
    assert [one.file for one in image_requests(OTHERS, CONFIG)] == files[16:]


def test_pairs_of_two_sets_are_different_files() -> None:
    config = EvaluationConfig(suite="paircomp")
    table = pairs(2)
    others = [Prompt(one.prompt_id, 1, one.text, one.metadata) for one in table]
    files = [one.file for one in image_requests([*table, *others], config)]
    assert len(set(files)) == len(files) == 16


def test_two_prompts_with_one_number_in_one_set_are_refused() -> None:
    with pytest.raises(DataError, match=r"'prompt 3' and 'another' of data set 0 .*3_0\.png"):
        image_requests([*PROMPTS, Prompt(3, 0, "another", PROMPTS[0].metadata)], CONFIG)


def test_verdicts_of_two_sets_are_read_as_they_were_written(tmp_path: Path) -> None:
    files = [one.file for one in image_requests(BOTH, CONFIG)]
    write_images(tmp_path, files, blank(BOTH))
    found = score_folder(tmp_path, BOTH, CONFIG, scripted())
    assert len(found.units) == 8
    rows = read_judgements(tmp_path / "unigenbench_scores.csv")
    assert {row["dataset_id"] for row in rows} == {0, 1}
    assert len({row["image"] for row in rows}) == 32
    assert shares(table(rows, "judge", 10)) == shares(table(found.rows, "judge", 10))


def test_one_set_is_written_as_published(tmp_path: Path) -> None:
    files = [one.file for one in image_requests(PROMPTS, CONFIG)]
    write_images(tmp_path, files, blank())
    score_folder(tmp_path, PROMPTS, CONFIG, scripted())
    header = (tmp_path / "unigenbench_scores.csv").read_text().splitlines()[0]
    assert header == "index,dup_idx,success,testpoints,scores,raw_output"


def test_prompts_without_points_take_nobodys_place() -> None:
    without = [without_points(n) for n in range(5)]
    assert evaluated([*without, *PROMPTS], CONFIG, 3) == PROMPTS[:3]
    assert evaluated([*without, *PROMPTS], CONFIG, 99) == PROMPTS
    assert evaluated(without, EvaluationConfig(suite="ocr"), 3) == without[:3]
    half = evaluated(pairs(3), EvaluationConfig(suite="paircomp"), 3)
    assert half == pairs(3)[:2], "half a pair is none"


def without_points(number: int) -> Prompt:
    return Prompt(number, 0, f"without points {number}", {})
