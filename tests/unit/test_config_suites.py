"""Which data a suite needs, which judge it may ask, and what is said where it is the reward."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.digest import stage_digest
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.suite_rules import judge_is_reward
from atelier.errors import ConfigError, PlanError

HUB = "policy.path=organisation/model"
JUDGE = "judges.scene={model: assets/tiny-judge, placement: in_process}"
PAIRS = ("data.scene_kind=shapes", "data.scene_pairs=0.5", "rewards.ocr=null")
OTHER = ("rewards.jpeg_compressibility.weight=1.0",)
COMPARED = (*PAIRS, *OTHER, "evaluation.suite=paircomp")


def configured(*overrides):
    return resolve("tiny/flow-grpo-fast", overrides, Path(os.devnull))


def planned(*overrides):
    return plan(configured(HUB, *overrides))


def test_a_suite_of_pairs_counts_two_images_a_caption():
    found = planned(*COMPARED, "evaluation.prompts=20", "evaluation.periodic_prompts=10")
    assert found.evaluation_images == 2 * (2 * 20 + found.evaluations * 10)
    more = planned(*COMPARED, "evaluation.images_per_prompt=4")
    assert more.evaluation_images == 2 * planned(*COMPARED).evaluation_images


def test_only_the_suite_that_is_used_needs_its_judge():
    assert configured(JUDGE, "evaluation.paircomp.judge=scene").evaluation.judge is None
    with pytest.raises(ConfigError, match=r"editing\.judge.*'gone' is not one of judges"):
        configured(JUDGE, "evaluation.editing.judge=gone")


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (["data.unpaired_path=x.txt"], "data.unpaired_path", "it needs data.source paircomp or"),
        (["data.heldout_source=plain"], "data.heldout_source", "is not set"),
        (["data.scene_task=edit"], "data.scene_task", "edit needs data.scene_kind shapes"),
        (["data.scene_task=graph"], "data.scene_task", "graph needs data.scene_kind shapes"),
        (
            ["data.scene_task=graph", "data.scene_kind=shapes", "data.scene_pairs=1"],
            "data.scene_pairs",
            "graphs do not come in pairs",
        ),
        (
            [JUDGE, "evaluation.mmmg.judge=scene"],
            "evaluation.mmmg.judge",
            "answers yes or no only; this suite needs words",
        ),
        (["evaluation.mmmg.judge=gone"], "evaluation.mmmg.judge", "is not one of judges"),
        (
            ["evaluation.mmmg.regions.counter=sam2"],
            "evaluation.mmmg.regions.checkpoint",
            "is required with counter: sam2",
        ),
        (
            ["rewards.scene_graph={regions: {counter: sam2}}"],
            "rewards.scene_graph.regions.checkpoint",
            "is required with counter: sam2",
        ),
        ([JUDGE, "rewards.mmmg={judge: scene}"], "rewards.mmmg.judge", "answers yes or no only"),
        (
            [JUDGE, "rewards.complex_edit={judge: scene}"],
            "rewards.complex_edit.judge",
            "answers yes or no only",
        ),
        (
            [JUDGE, "evaluation.complex_edit.judge=scene"],
            "evaluation.complex_edit.judge",
            "answers yes or no only",
        ),
        (
            [JUDGE, "evaluation.unigenbench.judge=scene"],
            "evaluation.unigenbench.judge",
            "needs words: set .* or evaluation.unigenbench.ask to each",
        ),
        (
            ["evaluation.unigenbench.question=Is it right?"],
            "evaluation.unigenbench.question",
            "write {description} where it belongs",
        ),
        (
            ["rewards.scene_edit={following_weight: 0, preserving_weight: 0}"],
            "following_weight",
            "0",
        ),
        (
            ["data.scene_task=edit", "data.scene_kind=shapes", "data.scene_pairs=1"],
            "data.scene_pairs",
            "edits do not come in pairs",
        ),
        (
            [
                "judges.v={model: m, server: {share_gpus: true}, vllm: {sleep: true}}",
                "evaluation.suite=paircomp",
                "evaluation.paircomp.judge=v",
            ],
            "evaluation.paircomp.judge",
            "v sleeps while weights are updated",
        ),
    ],
)
def test_settings_that_exclude_each_other(overrides, key, reason):
    with pytest.raises(ConfigError, match=f"(?s){key}.*{reason}"):
        configured(*overrides)


def test_a_judge_that_writes_nothing_can_be_asked_about_one_part_at_a_time():
    section = "{judge: scene, ask: each}"
    found = configured(JUDGE, f"rewards.mmmg={section}", f"evaluation.mmmg={section}")
    assert found.evaluation.mmmg.judge == "scene"


EDIT = ("data.scene_task=edit", *PAIRS[:1], *PAIRS[2:], *OTHER, "evaluation.suite=editing")
PAIRED_FILE = ("data.source=paircomp", "data.path=pairs.json")
PLAIN = (*OTHER, "data.source=plain", "data.path=many.txt", "rewards.ocr=null")
MMMG_FILE = ("data.source=mmmg", "data.path=mmmg.json", "evaluation.suite=mmmg", "rewards.ocr=null")
LICENSED = (
    *("data.source=complex_edit", "data.path=rows.jsonl"),
    *("evaluation.suite=complex_edit", "rewards.ocr=null"),
)
POINTS = (
    *(*OTHER, "data.source=unigenbench", "data.path=many.csv", "rewards.ocr=null"),
    "evaluation.suite=unigenbench",
)
GRAPHS = (
    *("data.scene_task=graph", "data.scene_kind=shapes", "rewards.ocr=null"),
    *("rewards.scene_graph={}", "evaluation.suite=mmmg"),
)


@pytest.mark.parametrize(
    ("overrides", "key", "reason"),
    [
        (
            [*PAIRS, *OTHER, "train.prompts_per_step=11"],
            "train.prompts_per_step",
            "11 must be",
        ),
        (
            [*COMPARED, "evaluation.periodic_prompts=9"],
            "evaluation.periodic_prompts",
            "9 would",
        ),
        ([*COMPARED, "data.scene_pairs=0"], "evaluation.suite", "paircomp needs held-out pairs"),
        ([*EDIT, "data.scene_task=draw"], "evaluation.suite", "editing needs held-out edits"),
        ([*EDIT, "evaluation.suite=scenes"], "evaluation.suite", "scenes needs data.source scenes"),
        ([*COMPARED, *PAIRED_FILE], "evaluation.paircomp.judge", "is required"),
        ([*PLAIN, "evaluation.suite=scenes"], "evaluation.suite", "any kind have yes_no"),
        ([*PLAIN, "evaluation.suite=yes_no"], "evaluation.yes_no.judge", "declare one in judges"),
        ([*OTHER, "evaluation.suite=yes_no"], "evaluation.yes_no.judge", "is required: declare"),
        (
            [*PLAIN, JUDGE, "evaluation.suite=yes_no"],
            "evaluation.yes_no.judge",
            "name one of scene",
        ),
        (
            PLAIN,
            "evaluation.suite",
            "ocr needs a text to look for, and .* plain have none; use yes",
        ),
        (
            [*OTHER, *MMMG_FILE, "evaluation.suite=ocr"],
            "evaluation.suite",
            "of mmmg have none; use mmmg",
        ),
        (
            [*COMPARED, *PAIRED_FILE, "evaluation.suite=ocr"],
            "evaluation.suite",
            "have none; use paircomp",
        ),
        (
            [*EDIT, JUDGE, "evaluation.suite=yes_no", "evaluation.yes_no.judge=scene"],
            "evaluation.suite",
            "these are edits; use editing",
        ),
        ([*COMPARED, "evaluation.suite=mmmg"], "evaluation.suite", "mmmg needs held-out knowledge"),
        (
            [*PLAIN, "evaluation.suite=unigenbench"],
            "evaluation.suite",
            "needs held-out test points",
        ),
        ([*EDIT, "evaluation.suite=unigenbench"], "evaluation.suite", "data.scene_task draw"),
        ([*POINTS], "evaluation.unigenbench.judge", "is required"),
        ([*POINTS, "evaluation.suite=ocr"], "evaluation.suite", "have none; use unigenbench"),
        ([*OTHER, *MMMG_FILE], "evaluation.mmmg.judge", "is required"),
        ([*GRAPHS, "evaluation.suite=scenes"], "evaluation.suite", "and data.scene_task draw"),
        (
            [*EDIT, "data.scene_task=draw", "evaluation.suite=complex_edit"],
            "evaluation.suite",
            "complex_edit needs held-out edits of levels",
        ),
        ([*LICENSED], "data.accept_licence", "is published under CC-BY-NC-4.0"),
        ([*LICENSED, "evaluation.suite=yes_no"], "evaluation.suite", "use editing"),
        ([*LICENSED, "evaluation.suite=ocr"], "evaluation.suite", "use complex_edit"),
        ([*LICENSED], "evaluation.complex_edit.judge", "is required"),
        (["rewards.scene_edit={}"], "rewards.scene_edit", "needs edits of scenes"),
        (
            ["judges.j={model: organisation/j}", "rewards.complex_edit={judge: j}"],
            "rewards.complex_edit",
            "needs edits: data.source janus_edit or janus_sft_edit or complex_edit",
        ),
        (["rewards.scene_graph={}"], "rewards.scene_graph", "needs graphs of scenes"),
        (
            ["judges.j={model: organisation/j}", "rewards.mmmg={judge: j}"],
            "rewards.mmmg",
            "needs knowledge graphs",
        ),
        ([*GRAPHS, "rewards.ocr={}"], "rewards.ocr", "data.scene_task graph has none"),
        (["data.scene_task=edit", "data.scene_kind=shapes"], "rewards.ocr", "scene_task edit has"),
    ],
)
def test_data_that_a_suite_cannot_use(overrides, key, reason):
    with pytest.raises(PlanError, match=f"{key}: .*{reason}"):
        planned(*overrides)


def test_graphs_of_scenes_are_a_plan_that_works_and_one_that_a_judge_may_join():
    assert planned(*GRAPHS).judge_calls == 0
    judge = "judges.vlm={model: organisation/vlm, placement: remote, urls: [http://h:1/v1]}"
    joined = planned(*GRAPHS, judge, "rewards.mmmg={judge: vlm}", "evaluation.mmmg.judge=vlm")
    assert joined.judge_calls == joined.images
    assert any("in red" in text for text in joined.warnings)
    easy = planned("data.scene_tiers=2", "data.edit_levels=8", "evaluation.suite=ocr")
    for key in ("data.scene_tiers", "data.edit_levels"):
        assert any(key in text for text in easy.warnings)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *(("plain", "mine.txt"), ("plain", "mine.jsonl"), ("geneval", "mine.jsonl")),
        *(("unigenbench", "mine.csv"), ("janus_sft", "mine.jsonl")),
    ],
)
@pytest.mark.parametrize("recipe", ["janus-pro-1b/introspective-v1", "janus-pro-7b/grpo"])
def test_prompts_of_any_kind_have_a_suite_whatever_the_recipe(tmp_path, source, name, recipe):
    (tmp_path / name).write_text("a dog\n")
    overrides = (
        *(f"data.source={source}", f"data.path={tmp_path / name}", "evaluation.suite=yes_no"),
        *("judges.other={model: organisation/o, placement: remote, urls: [http://h:1/v1]}",),
        "evaluation.yes_no.judge=other",
    )
    found = plan(resolve(recipe, overrides, Path(os.devnull)))
    assert not any("evaluation" in text for text in found.warnings)


def test_text_that_is_not_there_is_warned_of_and_that_of_plain_json_lines_believed(tmp_path):
    (tmp_path / "signs.jsonl").write_text("")
    warned = planned(*PAIRS, *OTHER).warnings
    assert any("ocr finds no text" in text and "use paircomp" in text for text in warned)
    signs = (f"data.path={tmp_path / 'signs.jsonl'}", "data.source=plain", "rewards.ocr=null")
    for overrides in ((), (*signs, *OTHER)):
        assert not any("evaluation.suite" in text for text in planned(*overrides).warnings)


def test_test_points_have_four_images_a_prompt_and_a_judge_of_yes_and_no_where_each_is_asked():
    scenes = ("evaluation.suite=unigenbench", JUDGE, "evaluation.unigenbench.judge=scene")
    found = planned(*scenes, "evaluation.unigenbench.ask=each", "evaluation.prompts=10")
    assert found.evaluation_images == 4 * (2 * 10 + found.evaluations * 64)
    warned = planned(
        "evaluation.unigenbench.question=Is {description} there?", "data.malformed_rows=leave_out"
    )
    for key in ("evaluation.unigenbench.question", "data.malformed_rows"):
        assert any(key in text and "does nothing here" in text for text in warned.warnings)


def test_edits_and_pairs_of_scenes_are_plans_that_work():
    edits = resolve("janus-pro-7b/edit", ["evaluation.suite=editing"], Path(os.devnull))
    assert plan(edits).evaluation_images
    assert planned(*COMPARED).evaluation_images


OTHER_JUDGE = "judges.other={model: m, placement: in_process}"
ASKED = (JUDGE, *COMPARED, "evaluation.paircomp.judge=scene")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), False),
        (("rewards.yes_no={judge: scene}",), True),
        (("rewards.yes_no={judge: scene, weight: 0}",), False),
        (
            (OTHER_JUDGE, "rewards.yes_no={judge: other}"),
            False,
        ),
        (
            (
                "judges.other={model: assets/tiny-judge, placement: in_process}",
                "rewards.yes_no={judge: other}",
            ),
            True,
        ),
    ],
)
def test_a_judge_that_is_the_reward_is_warned_of(overrides, expected):
    assert judge_is_reward(configured(*ASKED, *overrides)) == expected
    warned = [text for text in planned(*ASKED, *overrides).warnings if "in red" in text]
    assert bool(warned) == expected
    assert all(text.startswith("evaluation.paircomp.judge: scene is") for text in warned)


def test_gold_is_no_reward():
    asked = ("rewards.yes_no={judge: scene}",)
    assert not judge_is_reward(configured(JUDGE, *COMPARED, *asked))


def test_what_scores_the_suite_shapes_the_baseline():
    before = stage_digest(configured(*ASKED), "baseline")
    longer = stage_digest(configured(*ASKED, "judges.scene.longest_side=32"), "baseline")
    assert before != longer
    assert before == stage_digest(configured(*ASKED, OTHER_JUDGE), "baseline")
    assert before != stage_digest(configured(*ASKED, "evaluation.images_per_prompt=3"), "baseline")
