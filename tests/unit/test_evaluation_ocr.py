"""The OCR suite on rendered scenes: perfect pictures, wrong ones, missing targets, files, pairs."""

import json
import random

import numpy as np
import pytest

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.rewards import OcrConfig
from atelier.data.prompts import Prompt
from atelier.data.render import render
from atelier.data.scenes import Scene, Word, prompt, to_dict
from atelier.errors import DataError
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import read_evaluation, read_images, write_images, write_results
from atelier.evaluation.requests import image_requests
from atelier.evaluation.results import Evaluation, compare, summarize

WORDS = ("KEM", "TUX", "BAR", "ZEN", "HUG", "FAT")
CONFIG = EvaluationConfig(ocr=OcrConfig(detect=False), bootstrap_samples=200, num_inference_steps=1)


def word_prompt(index, text):
    scene = Scene(word=Word(text, "blue"))
    return Prompt(index, 0, prompt(scene), {"target": text, "scene": to_dict(scene)})


def pictures(words):
    rng = random.Random(0)
    return np.stack([np.asarray(render(Scene(word=Word(text, "blue")), rng)) for text in words])


PROMPTS = [word_prompt(i, text) for i, text in enumerate(WORDS)]
FILES = [one.file for one in image_requests(PROMPTS, CONFIG)]


@pytest.fixture(scope="module")
def perfect():
    return evaluate(pictures(WORDS), PROMPTS, CONFIG)


@pytest.fixture(scope="module")
def shifted():
    """Every picture shows the word of the next prompt."""
    return evaluate(pictures((*WORDS[1:], WORDS[0])), PROMPTS, CONFIG)


def test_true_renders_are_read_and_gold(perfect):
    assert perfect.mean("similarity") > 0.9
    assert perfect.mean("gold") > 0.95
    assert perfect.summary["missing"] == 0
    assert [row["target"] for row in perfect.rows] == list(WORDS)
    assert [row["prompt_id"] for row in perfect.rows] == list(range(len(WORDS)))
    first = perfect.rows[0]
    assert first["text"].upper() == "KEM"
    assert first["exact"] == 1.0
    assert first["gold_facts"]["letter 1"] is True
    assert 0 < first["dark_share"] < 0.5
    interval = perfect.summary["metrics"]["similarity"]
    assert interval["low"] <= interval["mean"] <= interval["high"]
    assert interval["n"] == len(WORDS)


def test_the_wrong_word_scores_low_on_both(shifted):
    assert shifted.mean("similarity") < 0.5
    assert shifted.mean("exact") == 0
    assert shifted.mean("gold") < 0.7


def test_before_and_after_are_paired_by_prompt(perfect, shifted):
    reordered = Evaluation(perfect.rows[::-1], perfect.summary)
    rows = {row.metric: row for row in compare(shifted, reordered, samples=200)}
    gain = rows["similarity"]
    assert gain.difference == pytest.approx(gain.after - gain.before)
    assert gain.after == pytest.approx(perfect.mean("similarity"))
    assert gain.low > 0
    assert gain.excludes_zero
    assert not rows["color_entropy"].excludes_zero
    same = {row.metric: row for row in compare(perfect, perfect, samples=200)}
    assert (same["gold"].low, same["gold"].high) == (0, 0)


def test_a_missing_score_is_counted_and_never_zero(perfect):
    prompts = [*PROMPTS[:3], Prompt(3, 0, "a red circle"), *PROMPTS[4:]]
    found = evaluate(pictures(WORDS), prompts, CONFIG)
    assert found.summary["missing"] == 1
    assert found.rows[3]["similarity"] is found.rows[3]["exact"] is found.rows[3]["gold"] is None
    assert "target" in found.rows[3]["missing"]
    known = [row["similarity"] for row in perfect.rows if row["prompt_id"] != 3]
    assert found.mean("similarity") == pytest.approx(np.mean(known))
    pair = next(row for row in compare(perfect, found, 200) if row.metric == "similarity")
    assert pair.n == len(WORDS) - 1
    assert pair.difference == pytest.approx(0)


def test_a_metric_nobody_has_is_left_out():
    rows = [
        {"prompt_id": 0, "similarity": None, "gold": 0.5},
        {"prompt_id": 1, "similarity": None, "gold": None},
    ]
    found = summarize(rows, ("similarity", "gold"), samples=10)
    assert set(found) == {"gold"}
    assert found["gold"]["n"] == 1


def test_evaluations_without_a_common_prompt_cannot_be_compared(perfect):
    other = evaluate(pictures(WORDS[:1]), [word_prompt(99, "KEM")], CONFIG)
    with pytest.raises(DataError, match="share no prompt"):
        compare(perfect, other)
    twice = Evaluation([*perfect.rows, perfect.rows[0]], perfect.summary)
    with pytest.raises(DataError, match="two rows"):
        compare(twice, perfect)


def test_written_evaluations_read_back_equal(tmp_path, perfect):
    folder = tmp_path / "baseline"
    write_images(folder, FILES, pictures(WORDS))
    write_results(folder, perfect, pictures(WORDS))
    assert read_evaluation(folder) == perfect
    names = sorted(path.name for path in folder.iterdir())  # nothing aside is left
    assert names == ["grid.png", "images", "scores.jsonl", "summary.json"]
    np.testing.assert_array_equal(read_images(folder, FILES), pictures(WORDS))


def test_images_of_a_trainer_are_scored_from_disk(tmp_path, perfect):
    write_images(tmp_path, FILES[:4], pictures(WORDS)[:4])
    write_images(tmp_path, FILES[4:], pictures(WORDS)[4:])
    assert score_folder(tmp_path, PROMPTS, CONFIG) == perfect == read_evaluation(tmp_path)
    assert (tmp_path / perfect.rows[5]["image"]).is_file()


def test_a_folder_that_does_not_fit_is_refused(tmp_path):
    write_images(tmp_path, FILES[:2], pictures(WORDS)[:2])
    with pytest.raises(DataError, match=r"asks for 3 images, found 2.*00002\.png"):
        score_folder(tmp_path, PROMPTS[:3], CONFIG)
    (tmp_path / "images" / "00001.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"00001\.png: not a readable image"):
        score_folder(tmp_path, PROMPTS[:2], CONFIG)
    assert not (tmp_path / "summary.json").exists()
    with pytest.raises(DataError, match="no finished evaluation"):
        read_evaluation(tmp_path)


def test_a_damaged_result_is_refused(tmp_path, perfect):
    write_images(tmp_path / "e", FILES, pictures(WORDS))
    write_results(tmp_path / "e", perfect, pictures(WORDS))
    scores = tmp_path / "e" / "scores.jsonl"
    lines = scores.read_text(encoding="utf-8").splitlines(keepends=True)
    assert json.loads(lines[0])["target"] == "KEM"
    scores.write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(DataError, match="5 rows for 6 images"):
        read_evaluation(tmp_path / "e")
