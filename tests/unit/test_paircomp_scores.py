"""PairComp's score files: read, summarised as by hand, and refused with the place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.readers.paircomp import read
from atelier.data.scene_tables import scene_table
from atelier.errors import DataError
from atelier.evaluation.evaluate import evaluate
from atelier.evaluation.files import write_images, write_results
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.score_files import category_means, read_score_file
from atelier.judge.questions import Answer

PAIRCOMP = Path(__file__).resolve().parents[3] / "shared" / "data" / "paircomp" / "PairComp.json"


def entry(pair, scores):
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    return [
        {"pair_idx": pair, "prompt_idx": caption, "image_idx": image, "score": score}
        for (caption, image), score in zip(places, scores, strict=True)
    ]


def written(folder, pairs):
    path = folder / "scores.json"
    path.write_text(json.dumps(pairs))
    return path


def test_the_means_of_one_pair(tmp_path):
    """A golden value of FocusDiff."""
    path = written(tmp_path, {"0": entry(0, (0.9, 0.8, 0.5, 0.6))})
    (whole,) = category_means(read_score_file(path), 10)
    assert whole.category is None
    assert whole.arithmetic.mean == pytest.approx(0.7)
    assert whole.geometric.mean == pytest.approx(0.681732, abs=1e-6)


def test_over_all_the_categories_count_alike(tmp_path):
    scores = {0: (1, 1, 1, 1), 1: (0.5, 0.5, 0.5, 0.5), 2: (0, 1, 1, 1), 3: (0.16, 1, 1, 1)}
    path = written(tmp_path, {str(pair): entry(pair, one) for pair, one in scores.items()})
    categories = {0: "Color", 1: "Color", 2: "Color", 3: "Style & Tone"}
    colour, style, whole = category_means(read_score_file(path, categories), 100)
    assert [one.category for one in (colour, style, whole)] == ["Color", "Style & Tone", None]
    assert (colour.arithmetic.mean, colour.arithmetic.n) == (pytest.approx(0.75), 3)
    assert (style.arithmetic.mean, style.arithmetic.n) == (pytest.approx(0.79), 1)
    assert whole.arithmetic.mean == pytest.approx(0.77)
    assert colour.geometric.mean == pytest.approx(0.5)
    assert style.geometric.mean == pytest.approx(0.16**0.25)
    assert whole.geometric.mean == pytest.approx((0.5 + 0.16**0.25) / 2)
    assert whole.geometric.low < whole.geometric.mean < whole.geometric.high


@pytest.mark.skipif(not PAIRCOMP.is_file(), reason="PairComp.json is not beside this checkout")
def test_scores_of_all_550_pairs(tmp_path):
    """Each category has one level of its own, so the macro mean is known."""
    pairs = {one.metadata["pair"]: one.metadata["category"] for one in read(PAIRCOMP)}
    names = list(dict.fromkeys(pairs.values()))
    level = {name: (index + 1) / 10 for index, name in enumerate(names)}
    scores = {str(pair): entry(pair, [level[name]] * 4) for pair, name in pairs.items()}
    path = written(tmp_path, scores)
    *categories, whole = category_means(read_score_file(path, pairs), 200)
    assert {one.category: one.arithmetic.mean for one in categories} == pytest.approx(level)
    counts = {one.category.split(" diff")[0]: one.arithmetic.n for one in categories}
    assert counts == {
        **{"Overall appearance": 250, "Style & Tone": 100, "Color": 50},
        **{"Counting": 50, "Position": 50, "Text": 50},
    }
    assert whole.arithmetic.mean == pytest.approx(np.mean(list(level.values())))
    assert whole.arithmetic.n == 550
    result = CliRunner().invoke(
        application, ["paircomp", "summary", str(path), "--pairs", str(PAIRCOMP)]
    )
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert len(lines) == 8
    assert lines[-1].split() == [
        *["All", "0.350", "(0.350", "to", "0.350)", "0.350", "(0.350", "to", "0.350)", "550"]
    ]


def said(*words):
    result = CliRunner().invoke(application, ["paircomp", "summary", *map(str, words)])
    return result.exit_code, result.output


CAPTIONS = [
    {"category": name, "caption1": f"a {index}", "caption2": f"b {index}"}
    for index, name in enumerate(("Color", "Color", "Style & Tone"))
]


def test_a_category_without_a_score_is_told_and_makes_no_mean_of_all(tmp_path):
    pairs = tmp_path / "PairComp.json"
    pairs.write_text(json.dumps(CAPTIONS))
    own = {str(pair): entry(pair, (1, 1, 1, 1)) for pair in range(3)}
    code, whole = said(written(tmp_path, own), "--pairs", pairs)
    assert code == 0
    assert "warning" not in whole
    assert whole.splitlines()[-1].split()[-1] == "3"
    code, partly = said(written(tmp_path, {"0": own["0"], "2": own["2"]}), "--pairs", pairs)
    assert "1 of 2" in partly
    assert "2 of 3" in partly
    assert "warning: 1 of 3 pairs have no score" in partly
    code, lacking = said(written(tmp_path, {"0": own["0"]}), "--pairs", pairs)
    rows = {line.split("  ")[0]: line for line in lacking.splitlines()}
    assert "missing" in rows["Style & Tone"]
    assert "0 of 1" in rows["Style & Tone"]
    assert "missing" in rows["All"]
    assert "warning: no pair of Style & Tone has a score, so All has none" in lacking


@pytest.mark.parametrize("other", ["color", "Color!"])
def test_categories_that_would_be_one_mean_are_refused(tmp_path, other):
    pairs = tmp_path / "PairComp.json"
    pairs.write_text(json.dumps([CAPTIONS[0], {**CAPTIONS[1], "category": other}]))
    with pytest.raises(DataError, match=f"category '{other}': would have one mean with 'Color'"):
        read(pairs)


def test_the_suite_refuses_such_categories_before_a_judge_is_asked():
    data = DataConfig(scene_kind="shapes", scene_pairs=1, train_prompts=12)
    prompts = list(scene_table(data, "train"))
    for one in prompts[:2]:
        one.metadata["category"] = prompts[2].metadata["category"].upper() + "?"
    pictures = np.zeros((2 * len(prompts), 64, 64, 3), np.uint8)
    judge = SuiteJudge("j", "m", None)
    with pytest.raises(DataError, match="would have one mean"):
        evaluate(pictures, prompts, EvaluationConfig(suite="paircomp"), judge)


class Levels:
    """A judge whose P(yes) follows from the length of the question."""

    def ask(self, questions):
        return [Answer({"p_yes": len(one.prompt) / 200}) for one in questions]


def test_a_run_and_its_folder_say_what_the_report_says(tmp_path, monkeypatch):
    """Also its score file: categories are known where it lies."""
    data = DataConfig(scene_kind="shapes", scene_pairs=1, train_prompts=12)
    config = EvaluationConfig(suite="paircomp", bootstrap_samples=200)
    pictures = np.zeros((24, 64, 64, 3), np.uint8)
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path / "runs"))
    run = tmp_path / "runs" / "5a17b0-run"
    for folder, judge in (("baseline", None), ("evaluate", SuiteJudge("j", "m", Levels()))):
        evaluation = evaluate(pictures, list(scene_table(data, "train")), config, judge)
        write_images(run / folder, [row["image"] for row in evaluation.rows], pictures)
        write_results(run / folder, evaluation, pictures)
    (run / "run.json").write_text("{}")
    whole = evaluation.summary["metrics"]["judge_arithmetic"]
    expected = f"{whole['mean']:.3f} ({whole['low']:.3f} to {whole['high']:.3f})"
    for name in ("5a17b0", "5a17b0-run", run, run / "evaluate", run / "evaluate/paircomp.json"):
        code, output = said(name)
        assert code == 0, output
        assert expected in output.splitlines()[-1]
        assert len(output.splitlines()) > 3, "a row a category"
    other = run / "evaluate" / "theirs.json"  # is what it is named, wherever it lies
    other.write_text((run / "baseline/paircomp.json").read_text())
    code, output = said(other)
    assert "0.000" in output.splitlines()[-1]
    assert len(output.splitlines()) <= 4, "without categories"
    code, output = said(run / "baseline")
    assert "0.000 (0.000 to 0.000)" in output.splitlines()[-1], "by gold, without a judge"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "no run 'nothing'"),
        ("", "is empty"),
        ("FOLDER", "no finished evaluation"),
        ("RUN", "no final evaluation"),
    ],
)
@pytest.mark.parametrize("verb", ["paircomp", "mmmg"])
def test_what_has_no_scores_is_told(tmp_path, monkeypatch, verb, name, words):
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path))
    for folder in ("FOLDER", "RUN"):
        (tmp_path / folder).mkdir()
    (tmp_path / "RUN" / "run.json").write_text("{}")
    named = str(tmp_path / name) if name == "FOLDER" else name
    result = CliRunner().invoke(application, [verb, "summary", named])
    assert result.exit_code != 0
    assert words in result.output + str(result.exception)


def test_paircomp_itself_is_no_score_file(tmp_path):
    with pytest.raises(DataError, match=r"PairComp's captions and no scores; name it in --pairs"):
        read_score_file(written(tmp_path, CAPTIONS))
    with pytest.raises(DataError, match="4 objects of pair_idx, prompt_idx, image_idx, score"):
        read_score_file(written(tmp_path, {}))


GOOD = entry(0, (1, 1, 1, 1))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "a non-empty JSON object of pairs"),
        ({}, "a non-empty JSON object of pairs"),
        ({"0": GOOD[:3]}, "pair 0: a list of 4 images expected"),
        ({"0": [*GOOD[:3], GOOD[0]]}, "pair 0: image 3: prompt_idx 0, image_idx 0 stands twice"),
        ({"0": [*GOOD[:3], 3]}, "pair 0: image 3: an object with pair_idx"),
        ({"0": [*GOOD[:3], {**GOOD[3], "score": 1.5}]}, "image 3: key 'score': a number from 0"),
        ({"0": [*GOOD[:3], {**GOOD[3], "score": None}]}, "image 3: key 'score'"),
        ({"0": [*GOOD[:3], {**GOOD[3], "prompt_idx": 2}]}, "key 'prompt_idx': a whole number"),
        ({"0": [*GOOD[:3], {**GOOD[3], "scores": 1}]}, "unknown key 'scores'; did you mean score"),
        ({"1": GOOD}, "pair 1: image 0: key 'pair_idx': 1, as its list is called, not 0"),
        ({"0": GOOD, "7": entry(7, (1, 1, 1, 1))}, "pair 7: is not one of the 1 pairs"),
        *(
            ({"0": GOOD, name: entry(name, (1, 1, 1, 1))}, f"pair {name}: pairs are called by")
            for name in ("x", "-1", "00", "\N{ARABIC-INDIC DIGIT ZERO}")  # no second pair 0
        ),
    ],
)
def test_what_is_no_score_file_is_refused(tmp_path, pairs, message):
    path = written(tmp_path, pairs)
    with pytest.raises(DataError, match=f"{path}: (.*\n)*.*{message}"):
        read_score_file(path, {0: "Color"})


def test_the_verb_needs_no_categories(tmp_path):
    path = written(tmp_path, {"0": entry(0, (0.9, 0.8, 0.5, 0.6))})
    result = CliRunner().invoke(application, ["paircomp", "summary", str(path)])
    assert result.exit_code == 0, result.output
    assert "0.700" in result.output
    assert "0.682" in result.output
