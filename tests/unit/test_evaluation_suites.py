"""Suites on rendered scenes: what faultless, wrong and missing pictures are worth, by gold and by
a judge that a test scripts."""

from __future__ import annotations

import json
import random
from math import sqrt

import numpy as np
import pytest

from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.edit_rows import edit_prompt
from atelier.data.edits import edit
from atelier.data.ground_truth import ground_truth_image, source_image
from atelier.data.prompts import Prompt
from atelier.data.render import render
from atelier.data.scene_tables import scene_table
from atelier.data.scenes import facts, from_dict, prompt, sample_scene, to_dict
from atelier.errors import DataError, Stopped
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import read_evaluation, write_images
from atelier.evaluation.gold_columns import FACT_KINDS, fact_kind
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import evaluation_key, image_requests
from atelier.evaluation.results import Evaluation, compare, restricted
from atelier.evaluation.score_files import read_score_file
from atelier.evaluation.statistics import macro_weights, mean_interval, mean_of, paired_difference
from atelier.judge.questions import Answer


def suite(name, **settings):
    return EvaluationConfig(suite=name, bootstrap_samples=200, **settings)


class Scripted:
    """A judge whose P(yes) a function of the question gives; None is no answer."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def ask(self, questions):
        self.asked += questions
        found = [self.answers(one) for one in questions]
        return [Answer(missing="away") if p is None else Answer({"p_yes": p}) for p in found]

    def close(self):
        pass


def scripted(answers):
    return SuiteJudge("j", "models/j", Scripted(answers))


def scenes(kind, count=12):
    rng = random.Random(kind)
    found = [sample_scene(rng, kind) for _ in range(count)]
    return [Prompt(i, 0, prompt(one), {"scene": to_dict(one)}) for i, one in enumerate(found)]


def pairs(count=10, kind="mixed"):
    own = {"scene_kind": kind, "scene_pairs": 1.0, "train_prompts": 2 * count}
    return list(scene_table(DataConfig(**own), "train"))


def drawn(prompts, config, scene_of=lambda one: from_dict(one.metadata["scene"])):
    """A faultless picture for every request."""
    requests = image_requests(prompts, config)
    return np.stack(
        [np.asarray(render(scene_of(one.prompt), random.Random(one.key(0)))) for one in requests]
    )


# What is asked for ----------------------------------------------------------------------------


def test_images_of_a_prompt_differ_in_their_noise_and_the_first_keeps_its_own():
    prompts = scenes("shapes", 3)
    config = suite("scenes", images_per_prompt=4)
    requests = image_requests(prompts, config)
    assert [(one.prompt.prompt_id, one.number) for one in requests] == [
        (index, number) for index in range(3) for number in range(4)
    ]
    assert len({one.key(7) for one in requests}) == len({one.file for one in requests}) == 12
    assert [one.key(7) for one in requests[::4]] == [evaluation_key(7, one) for one in prompts]


def test_pairs_have_the_names_of_paircomp():
    table = pairs(2)
    requests = image_requests([*table, *scenes("word", 1)], suite("paircomp"))
    assert [one.file for one in requests] == [
        f"images/{pair}_{caption}_{number}.png"
        for pair in (0, 1)
        for caption in (0, 1)
        for number in (0, 1)
    ]
    assert len(image_requests(table[:3], suite("paircomp"))) == 4, "half a pair is none"


@pytest.mark.parametrize(("name", "what"), [("paircomp", "one of a pair"), ("editing", "an edit")])
def test_prompts_that_a_suite_cannot_use_are_refused(name, what):
    with pytest.raises(DataError, match=f"evaluation.suite {name}: none of the 2 .*{what}"):
        image_requests(scenes("word", 2), suite(name))


# Scenes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["word", "shapes", "mixed"])
def test_faultless_pictures_are_right_in_every_scene_kind(kind):
    prompts, config = scenes(kind), suite("scenes")
    perfect = evaluate(drawn(prompts, config), prompts, config)
    assert perfect.mean("strict") == perfect.mean("gold") == 1
    assert perfect.summary["headline"] == perfect.summary["image_score"] == "strict"
    kinds = {fact_kind(fact) for one in prompts for fact in facts(from_dict(one.metadata["scene"]))}
    assert {f"facts/{kind}" for kind in kinds} == {
        name for name in perfect.summary["metrics"] if name.startswith("facts/")
    }
    assert kinds <= set(FACT_KINDS)
    shifted = evaluate(np.roll(drawn(prompts, config), 1, axis=0), prompts, config)
    assert shifted.mean("strict") < 0.2
    assert shifted.mean("strict") <= shifted.mean("gold") < 0.8
    assert "wrong: " in shifted.rows[0]["text"]


def test_several_images_of_a_prompt_are_one_value():
    """Their mean; the interval is over prompts, not over images."""
    prompts, config = scenes("shapes", 6), suite("scenes", images_per_prompt=3)
    images = drawn(prompts, config)
    images[::3] = 255  # one of three is empty
    found = evaluate(images, prompts, config)
    metric = found.summary["metrics"]["strict"]
    assert metric["n"] == 6
    assert metric["mean"] == metric["low"] == metric["high"] == pytest.approx(2 / 3)
    assert found.summary["images"] == 18


def test_a_prompt_without_a_scene_is_named():
    with pytest.raises(DataError, match="prompt 5 has no scene"):
        evaluate(np.zeros((1, 64, 64, 3), np.uint8), [Prompt(5, 0, "a dog")], suite("scenes"))


# Yes or no --------------------------------------------------------------------------------------


def test_prompts_of_any_kind_are_asked_about_in_the_words_of_the_suite():
    prompts = [Prompt(0, 0, "a dog"), Prompt(1, 0, "a cat"), *scenes("shapes", 3)[2:]]
    config = suite("yes_no", images_per_prompt=2, yes_no={"question": "Is it {prompt}?"})
    numbers = iter([0.2, 0.4, None, None, 0.9, 0.9])
    judge = scripted(lambda question: next(numbers))
    found = evaluate(np.zeros((6, 64, 64, 3), np.uint8), prompts, config, judge)
    assert [one.prompt for one in judge.judge.asked[:4:2]] == ["Is it a dog?", "Is it a cat?"]
    assert all(len(one.images) == 1 for one in judge.judge.asked)
    assert found.summary["headline"] == found.summary["image_score"] == "judge"
    assert found.summary["missing"] == 2
    assert found.rows[2]["missing"] == "away"
    assert found.mean("judge") == pytest.approx((0.3 + 0.9) / 2), "a missing score is no number"
    assert found.summary["metrics"]["gold"]["n"] == 1, "of the only scene"


def test_yes_or_no_needs_somebody_who_says_it():
    prompts, config = [Prompt(0, 0, "a dog")], suite("yes_no")
    with pytest.raises(DataError, match=r"name one in evaluation\.yes_no\.judge"):
        evaluate(np.zeros((1, 64, 64, 3), np.uint8), prompts, config)
    with pytest.raises(Stopped, match="answered no question of the suite: away"):
        evaluate(np.zeros((1, 64, 64, 3), np.uint8), prompts, config, scripted(lambda one: None))


# PairComp ---------------------------------------------------------------------------------------


def test_gold_scores_of_pairs_by_hand():
    """Both captions right; one image of four wrong; the second caption drawn as the first."""
    table, config = pairs(3, "shapes"), suite("paircomp")
    images = drawn(table, config)
    images[4] = 255
    images[10:12] = images[8:10]
    found = evaluate(images, table, config)
    assert found.summary["headline"] == "gold_arithmetic"
    assert found.summary["reader"] == "gold"
    values = {unit.key[1]: unit.values for unit in found.units}
    assert [values[pair]["gold_arithmetic"] for pair in range(3)] == [1, 0.75, 0.5]
    assert [values[pair]["gold_geometric"] for pair in range(3)] == [1, 0, 0]
    categories = [one.metadata["category"] for one in table[::2]]
    by_category = {}
    for category, value in zip(categories, (1, 0.75, 0.5), strict=True):
        by_category.setdefault(category, []).append(value)
    expected = np.mean([np.mean(one) for one in by_category.values()])
    assert found.mean("gold_arithmetic") == pytest.approx(expected)
    for category, own in by_category.items():
        assert found.mean(f"gold_arithmetic/{category}") == pytest.approx(np.mean(own))
    assert not any(name.startswith("judge") for name in found.summary["metrics"])


def test_a_judge_scores_every_image_against_its_own_caption():
    """A golden value of FocusDiff: (0.9, 0.8, 0.5, 0.6) is 0.7 and 0.681732."""
    table, config = pairs(2), suite("paircomp")
    numbers = iter([0.9, 0.8, 0.5, 0.6, None, 0.8, 0.5, 0.6])
    judge = scripted(lambda question: next(numbers))
    found = evaluate(drawn(table, config), table, config, judge)
    texts = [question.prompt for question in judge.judge.asked]
    assert texts[2] == f"Does this image show {table[1].text}? Answer yes or no."
    assert found.summary["headline"] == "judge_arithmetic"
    assert found.summary["reader"] == "judge models/j"
    assert found.summary["missing"] == 1
    assert found.rows[4]["missing"] == "away"
    assert found.mean("judge_arithmetic") == pytest.approx(0.7)
    assert found.mean("judge_geometric") == pytest.approx(0.681732, abs=1e-6)
    assert found.summary["metrics"]["judge_geometric"]["n"] == 1, "the pair of a missing one is out"
    assert found.mean("gold_arithmetic") == 1, "gold is there beside the judge"
    assert found.summary["metrics"]["gold_arithmetic"]["n"] == 2


def test_a_judge_that_answers_nothing_stops_the_evaluation():
    table, config = pairs(1), suite("paircomp")
    with pytest.raises(Stopped, match=r"judges\.j answered no question of the suite: away"):
        evaluate(drawn(table, config), table, config, scripted(lambda question: None))


def test_captions_that_no_checker_knows_need_a_judge():
    own = {"pair": 0, "category": "Color difference", "partner": ""}
    table = [Prompt(i, 0, f"dog {i}", {**own, "caption": i + 1}) for i in range(2)]
    with pytest.raises(DataError, match=r"prompt 0 has no scene.*evaluation\.paircomp\.judge"):
        evaluate(np.zeros((4, 64, 64, 3), np.uint8), table, suite("paircomp"))
    found = evaluate(
        np.zeros((4, 64, 64, 3), np.uint8), table, suite("paircomp"), scripted(lambda q: 0.5)
    )
    assert found.mean("judge_arithmetic/color_difference") == 0.5


def test_a_folder_of_pairs_holds_scores_that_paircomp_reads(tmp_path):
    table, config = pairs(3), suite("paircomp")
    files = [one.file for one in image_requests(table, config)]
    write_images(tmp_path, files, drawn(table, config))
    judge = scripted(lambda question: len(question.prompt) / 100)
    found = score_folder(tmp_path, table, config, judge)
    assert read_evaluation(tmp_path) == found
    rows = read_score_file(tmp_path / "paircomp.json")
    assert [row["judge"] for row in rows] == [row["judge"] for row in found.rows]
    assert [f"images/{row['image']}" for row in rows] == files
    content = json.loads((tmp_path / "paircomp.json").read_text())
    assert list(content) == ["0", "1", "2"]
    assert content["1"][2] == {
        **{"pair_idx": 1, "prompt_idx": 1, "image_idx": 0},
        "score": found.rows[6]["judge"],
    }


def test_before_and_after_are_paired_by_pair_within_categories():
    table, config = pairs(12), suite("paircomp")
    after = evaluate(drawn(table, config), table, config)
    worse = drawn(table, config)
    worse[::4] = 255
    before = evaluate(worse, table, config)
    rows = {row.metric: row for row in compare(before, after, 200)}
    gain = rows["gold_arithmetic"]
    assert (gain.before, gain.after, gain.difference) == (0.75, 1, 0.25)
    assert gain.low == gain.high == 0.25
    assert gain.n == 12
    some = [row for row in rows if row.startswith("gold_geometric/")]
    assert len(some) == len({one.metadata["category"] for one in table})
    twice = Evaluation([*after.rows, after.rows[0]], after.summary)
    with pytest.raises(DataError, match="two rows"):
        compare(twice, after)


def test_the_first_images_of_an_evaluation_are_one_themselves():
    table, config = pairs(6), suite("paircomp")
    images = drawn(table, config)
    images[::4] = 255
    whole = evaluate(images, table, config)
    files = [one.file for one in image_requests(table[:6], config)]
    assert restricted(whole, files) == evaluate(images[:12], table[:6], config)


# Editing ----------------------------------------------------------------------------------------


def edits(count=12):
    rng = random.Random(0)
    made = [edit(sample_scene(rng, "shapes"), rng) for _ in range(count)]
    return [Prompt(i, 0, one.text, one.metadata) for i, one in enumerate(map(edit_prompt, made))]


def test_edits_that_are_done_copied_or_drawn_anew():
    prompts, config = edits(), suite("editing")
    done = np.stack([np.asarray(ground_truth_image(one)) for one in prompts])
    copied = np.stack([np.asarray(source_image(one)) for one in prompts])
    found = evaluate(done, prompts, config)
    assert found.mean("gold_following") == found.mean("gold_preserving") == 1
    assert found.mean("gold_edited") == found.mean("gold") == 1
    kinds = {one.metadata["category"] for one in prompts}
    assert {name for name in found.summary["metrics"] if "/" in name} == {
        f"gold_edited/{kind}" for kind in kinds
    }
    lazy = evaluate(copied, prompts, config)
    assert lazy.mean("gold_following") == lazy.mean("gold_edited") == 0
    assert lazy.mean("gold_preserving") > 0.9
    empty = evaluate(np.full_like(done, 255), prompts, config)
    assert empty.mean("gold_preserving") < 0.5
    gain = {row.metric: row for row in compare(lazy, found, 200)}["gold_edited"]
    assert gain.difference == 1


def test_a_judge_of_edits_sees_the_source_first():
    prompts, config = edits(3), suite("editing")
    done = np.stack([np.asarray(ground_truth_image(one)) for one in prompts])
    judge = scripted(lambda question: 0.9 if "the same in both" in question.prompt else 0.4)
    found = evaluate(done, prompts, config, judge)
    question = judge.judge.asked[1]
    first, second = (np.asarray(one) for one in question.images)
    assert np.array_equal(first, np.asarray(source_image(prompts[0])))
    assert np.array_equal(second, done[0])
    assert prompts[0].text in question.prompt
    assert found.summary["headline"] == "judge_edited"
    assert found.mean("judge_following") == pytest.approx(0.4)
    assert found.mean("judge_preserving") == pytest.approx(0.9)
    assert found.mean("judge_edited") == pytest.approx(sqrt(0.36))
    assert found.mean("gold_edited") == 1
    answers = iter([0.5, None, *[0.5] * 4])
    part = evaluate(done, prompts, config, scripted(lambda question: next(answers)))
    assert part.summary["missing"] == 1
    assert part.summary["metrics"]["judge_following"]["n"] == 2
    with pytest.raises(Stopped, match=r"judges\.j answered no question of the suite: away"):
        evaluate(done, prompts, config, scripted(lambda question: None))


def test_a_judge_of_edits_may_be_asked_for_facts_of_the_edited_image_alone():
    prompts, config = edits(6), suite("editing", editing={"about": "facts"})
    done = np.stack([np.asarray(ground_truth_image(one)) for one in prompts])
    answers = {
        text: right == "yes"
        for one in prompts
        for side in ("following", "preserving")
        for text, right in one.metadata[side]
    }
    judge = scripted(lambda question: 0.8 if answers[question.prompt] else 0.2)
    found = evaluate(done, prompts, config, judge)
    assert all(len(question.images) == 1 for question in judge.judge.asked)
    assert found.mean("judge_following") == pytest.approx(0.8)
    assert found.summary["missing"] == 0


def test_edits_of_files_need_a_judge():
    prompts = [Prompt(0, 0, "make it red", {"source_image": "x.png"})]
    with pytest.raises(DataError, match=r"no edit of a scene.*evaluation\.editing\.judge"):
        evaluate(np.zeros((1, 64, 64, 3), np.uint8), prompts, suite("editing"))


# Statistics -------------------------------------------------------------------------------------


def test_a_macro_mean_is_the_mean_of_the_strata():
    values, strata = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0], ["a", "a", "a", "a", "b", "b"]
    assert mean_of(values, strata) == pytest.approx(0.625)
    assert mean_of(values) == pytest.approx(0.5)
    assert (np.array(values) * macro_weights(strata)).mean() == pytest.approx(0.625)
    assert macro_weights(strata).mean() == pytest.approx(1)
    found = mean_interval(values, 4000, strata=strata)
    assert found.mean == pytest.approx(0.625)
    # Stratum b has no spread: the interval is that of a, halved, around its half.
    own = mean_interval(values[:4], 4000)
    assert (found.low, found.high) == pytest.approx((0.5 + own.low / 2, 0.5 + own.high / 2))
    after = paired_difference(values, [1.0] * 6, 100, strata=strata)
    assert after.mean == pytest.approx(0.375)


def test_a_stratum_of_one_value_makes_the_interval_wider_and_never_empty():
    """It has no spread of its own, so it may not be taken for one without."""
    values, strata = [0.2, 0.4, 0.9, 0.1], ["a", "b", "c", "d"]
    assert mean_interval(values, 500, strata=strata) == mean_interval(values, 500)
    one = mean_interval([*values, 0.3], 4000, strata=["a", "a", "b", "b", "c"])
    two = mean_interval([*values, 0.3, 0.3], 4000, strata=["a", "a", "b", "b", "c", "c"])
    assert one.mean == pytest.approx(two.mean)
    assert one.low < two.low < two.high < one.high


def test_one_stratum_is_none():
    values = list(np.linspace(0, 1, 9))
    assert mean_interval(values, 500) == mean_interval(values, 500, strata=["x"] * 9)
