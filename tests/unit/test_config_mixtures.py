"""Mixtures in the configuration: what is refused, with the key, and what the plan says of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.suite_data import has_test_points
from atelier.errors import ConfigError, PlanError


def planned(*overrides: str):
    return plan(resolve("tiny/mixture", overrides, Path(os.devnull)))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.datasets={}", None),
        ("data.path=x.txt", r"data\.path: does nothing with data\.source mixture"),
        ("data.heldout_path=x.txt", r"data\.heldout_path: does nothing"),
        ("data.datasets.shapes.rewards.ocr=0.5", r"shapes\.rewards\.ocr: needs a text .*shapes"),
        ("data.datasets.shapes.rewards.ocr_vllm=0.5", r"rewards\.ocr_vllm: needs a text"),
        ("data.datasets.more={rewards: {yes_no: 0}}", r"more\.rewards: all weights are 0"),
        ("data.datasets.more={source: plain}", r"more\.path: is required when source is plain"),
        ("data.datasets.more={path: x.txt}", r"more\.path: is for prompt files"),
        ("data.datasets.more={sample_weight: 0}", r"more\.sample_weight: 0"),
        ("data.datasets.more={weight: 2}", r"more\.weight: unknown key.*sample_weight"),
        ("data.datasets.more={source: paircomp}", r'more\.source: "paircomp" must be'),
        ("data.datasets.words_={sample_weight: 2}", r"words_: is called like words but for under"),
        ("data.sampling_mode=weights_only", r"sampling_mode: .*weight_only"),
        ("data.curriculum.scores=s.jsonl", r"curriculum\.scores: a curriculum and the sample wei"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_key(override: str, message: str | None) -> None:
    if message is None:  # an empty section lies over those of the recipe: nothing changes
        assert planned(override).prompts_per_step == 8
        return
    with pytest.raises(ConfigError, match=message):
        planned(override)


def test_a_mixture_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.datasets: is required when data\.source is mix"):
        resolve(None, ["data.source=mixture", "rewards.ocr={}"], Path(os.devnull))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip_similarity", r"more\.rewards\.clip_similarity: .*and it is not set; set it"),
        ("clip_sim", r"more\.rewards\.clip_sim: .*and it is not set"),
        ("clipscore", r"there is not; did you mean rewards\.clip_similarity\?"),
        ("yesno", r"there is not; did you mean rewards\.yes_no\?"),
        ("hps", "there is not; it is not built in, but a reward below rewards.custom"),
    ],
)
def test_a_reward_that_is_not_set_is_refused(name: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planned(f"data.datasets.more={{scene_kind: shapes, rewards: {{{name}: 1}}}}")


def test_published_names_are_ours() -> None:
    planned("data.datasets.more={rewards: {unifiedreward_think: 1, ocr: 1}}")


def test_a_reward_that_no_data_set_names_is_a_warning() -> None:
    found = planned("rewards.jpeg_compressibility={}")
    assert [
        one for one in found.warnings if one.startswith("rewards.jpeg_compressibility: no data")
    ]
    assert not [one for one in planned().warnings if "no data set" in one]
    # A data set that names none is rewarded by all.
    found = planned("rewards.jpeg_compressibility={}", "data.datasets.more={}")
    assert not [one for one in found.warnings if "no data set" in one]


def test_the_prompts_of_all_data_sets_count() -> None:
    assert planned("train.prompts_per_step=2048").prompts_per_step == 2048
    with pytest.raises(PlanError, match=r"4096 is more than data\.train_prompts 2048"):
        planned("train.prompts_per_step=4096")
    assert planned("evaluation.prompts=1000").evaluation_images == 2 * 128 + 4 * 64


def test_the_scenes_suite_wants_scenes_of_every_data_set(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_text("a dog\n" * 3)
    more = f"data.datasets.more={{source: plain, path: {path}}}"
    with pytest.raises(PlanError, match=r"evaluation\.suite: scenes needs"):
        planned(more)
    with pytest.raises(PlanError, match=r"data\.datasets\.more\.path: there is no file"):
        planned(more.replace("p.txt", "q.txt"), "evaluation.suite=ocr")


def test_the_embedded_judge_compares_by_yes_or_no_only() -> None:
    with pytest.raises(ConfigError, match="this reward needs words"):
        planned("rewards.unified_reward_think.form=verdict")


def test_a_comparison_by_p_yes_costs_a_question_an_image() -> None:
    images = planned().images
    assert planned().judge_calls == 2 * images  # and one for yes_no


def test_a_mixture_has_the_test_points_of_its_data_sets() -> None:
    """Scenes have some, a file of plain prompts none; one data set with some is enough."""
    suite = ("evaluation.suite=unigenbench", "evaluation.unigenbench={judge: j}")
    judge = "judges.j={placement: remote, urls: ['http://127.0.0.1:9/v1'], model: m}"
    planned(*suite, judge)
    plain = "{source: plain, path: README.md, rewards: {yes_no: 1}}"
    one = resolve(
        "tiny/mixture", [*suite, judge, f"data.datasets.more={plain}"], Path(os.devnull)
    ).data
    assert has_test_points(one, "mixture")
    only = one.model_copy(update={"datasets": {"more": one.datasets["more"]}})
    assert not has_test_points(only, "mixture")


def test_a_mixture_of_scenes_alone_needs_no_judge(tmp_path: Path) -> None:
    """The exact checker scores each of its prompts; a file's it cannot."""
    suite = "evaluation.suite=unigenbench"
    assert planned(suite).judged[-1].asker.startswith("rewards.")
    path = tmp_path / "p.txt"
    path.write_text("a dog\n" * 3)
    more = f"data.datasets.more={{source: plain, path: '{path}', rewards: {{yes_no: 1}}}}"
    with pytest.raises(PlanError, match="the exact checker scores scenes only, not mixture"):
        planned(suite, more)
