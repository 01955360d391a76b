"""Weights by data set: what counts for an image, what is asked, and what is refused."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from atelier.algorithms.advantages import (
    each_reward_advantages,
    group_advantages,
    weight_shares,
)
from atelier.config.sections.rewards import RewardsConfig
from atelier.data.readers import deepgen
from atelier.errors import ConfigError
from atelier.rewards import Missing, Reward, RewardSet, ScoreBatch, Scores, build
from atelier.rewards.mixes import mix_of, require_mixes, weight_for


class Given:
    """Scores that stand in the metadata under the reward's name; it notes what it was asked."""

    direction = "higher_is_better"
    value_range = (-math.inf, math.inf)
    version = "1"

    def __init__(self, name):
        self.name, self.asked = name, []

    def score(self, batch):
        self.asked.append(list(batch.prompts))
        seen = [{"prompt": prompt} for prompt in batch.prompts]
        return Scores(self.name, [one[self.name] for one in batch.metadata], seen)

    def weights(self):
        return ()

    def golden(self):
        return ScoreBatch([], [], [], []), [], 0.0


def batch_of(rows):
    """Rows of ({name: score}, mix or None)."""
    metadata = [{**scores, **({} if mix is None else {"rewards": mix})} for scores, mix in rows]
    count = len(rows)
    prompts = [f"p{index}" for index in range(count)]
    return ScoreBatch([Image.new("RGB", (2, 2))] * count, prompts, metadata, [0] * count)


def collected(rows, weights, **given):
    scorers = {name: Given(name) for name in weights}
    rewards = [Reward(scorers[name], weight) for name, weight in weights.items()]
    with RewardSet(rewards, **({"by_dataset": True} | given)) as found:
        # In two batches, one of which may ask a reward nothing.
        parts = [found.submit(batch_of(part)) for part in (rows[:3], rows[3:])]
        return found.collect(parts), scorers


PUBLISHED = [
    ({"a": 0.0, "b": 0.2}, {"a": 0.7, "b": 0.3}),
    ({"a": 0.5, "b": 0.4}, {"a": 0.7, "b": 0.3}),
    ({"a": 1.0, "b": 0.9}, {"a": 0.7, "b": 0.3}),
    ({"a": 0.1, "b": 0.6}, {"a": 0.2, "b": 0.8}),
    ({"a": 0.1, "b": 0.6}, {"a": 0.2, "b": 0.8}),
    ({"a": 0.4, "b": 0.9}, {"a": 0.2, "b": 0.8}),
]


def test_published_totals():
    """A golden value of DeepGen-RL."""
    table, _ = collected(PUBLISHED, {"a": 1.0, "b": 1.0})
    assert table.total.tolist() == pytest.approx([0.06, 0.47, 0.97, 0.5, 0.5, 0.8])
    assert table.weights["a"].tolist() == [0.7] * 3 + [0.2] * 3
    assert table.valid.all()


def test_what_a_data_set_does_not_name_is_not_asked_and_not_missing():
    rows = [
        ({"a": 1.0, "b": 2.0}, {"a": 0.5}),
        ({"a": 1.0, "b": 2.0}, {"a": 0.5, "b": 0.0}),
        ({"a": 1.0, "b": 2.0}, None),
        ({"a": 1.0}, {"a": 2.0}),
    ]
    table, scorers = collected(rows, {"a": 10.0, "b": 100.0})
    assert scorers["b"].asked == [["p2"]]
    assert scorers["a"].asked == [["p0", "p1", "p2"], ["p0"]]
    assert table.total.tolist() == [0.5, 0.5, 210.0, 2.0]
    assert table.valid.all()
    assert table.reasons == [None] * 4
    assert np.isnan(table.values["b"]).tolist() == [True, True, False, True]
    assert table.details["b"] == [{}, {}, {"prompt": "p2"}, {}]


def test_what_it_names_and_has_no_score_is_missing():
    rows = [
        ({"a": Missing("away"), "b": 1.0}, {"a": 1.0}),
        ({"a": Missing("away"), "b": 1.0}, {"b": 1.0}),
    ]
    table, _ = collected(rows, {"a": 1.0, "b": 1.0})
    assert table.valid.tolist() == [False, True]
    assert table.reasons == ["a: away", None]


def test_a_weight_of_zero_in_the_section_still_logs():
    table, scorers = collected([({"a": 1.0, "b": 2.0}, None)], {"a": 1.0, "b": 0.0})
    assert scorers["b"].asked[0] == ["p0"]
    assert table.values["b"].tolist() == [2.0]
    assert table.total.tolist() == [1.0]


def test_held_out_evaluation_asks_about_every_image():
    table, _ = collected(PUBLISHED, {"a": 1.0, "b": 0.0}, by_dataset=False)
    assert table.total.tolist() == pytest.approx([0.0, 0.5, 1.0, 0.1, 0.1, 0.4])


def test_published_names_are_known():
    mix = {"rewards": {"clip_sim": 0.3, "unifiedreward_think": 0.7}}
    ours = mix_of(mix, ("clip_similarity", "unified_reward_think"))
    assert ours == {"clip_similarity": 0.3, "unified_reward_think": 0.7}
    assert mix_of(mix, ("clip_sim",)) == {"clip_sim": 0.3, "unified_reward_think": 0.7}
    assert weight_for("clip_similarity", 5.0, ours) == 0.3
    assert weight_for("ocr", 5.0, ours) is None
    assert weight_for("ocr", 5.0, None) == 5.0


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        ({"oc": 1.0}, r"rewards\.oc: data set texts"),
        ({"clip_sim": 1.0}, r"rewards\.clip_similarity: data set texts"),
        ({"ocr": "much"}, "weights are numbers"),
        ({"ocr": 0.0}, "every reward the weight 0"),
        ({"ocr_vllm": 0.5, "vlm_ocr": 0.5}, "one reward twice"),
    ],
)
def test_a_mix_that_cannot_be_used_is_refused(mix, reason):
    with pytest.raises(ConfigError, match=reason):
        require_mixes([{"dataset": "texts", "rewards": mix}], ("ocr", "vlm_ocr"))


def test_metadata_of_another_meaning_is_left_alone():
    require_mixes([{}, {"rewards": None}, {"rewards": ["ocr"]}, {"rewards": {}}], ("ocr",))
    assert mix_of({"rewards": "none"}, ("ocr",)) is None


def test_a_published_mixture_reaches_the_rewards(tmp_path):
    (tmp_path / "texts.txt").write_text('a sign that says "OPEN"\n')
    (tmp_path / "general.txt").write_text("a cat\n")
    (tmp_path / "mix.yaml").write_text(
        "datasets:\n"
        "  - {name: texts, path: texts.txt, rewards: [{jpeg_compressibility: 0.25}, {own: 0.7}]}\n"
        "  - {name: general, path: general.txt, rewards: [{jpeg_compressibility: 0.3}]}\n"
    )
    prompts = deepgen.read(tmp_path / "mix.yaml")
    own = {"function": "examples.rewards.contrast:contrast"}
    config = RewardsConfig.model_validate({"jpeg_compressibility": {}, "custom": {"own": own}})
    with build(config) as rewards:
        rewards.require_mixes(one.metadata for one in prompts)
        images = [Image.new("RGB", (64, 64))] * 2
        texts, metadata = [one.text for one in prompts], [one.metadata for one in prompts]
        table = rewards.collect([rewards.submit(ScoreBatch(images, texts, metadata, [0, 1]))])
    assert table.weights["jpeg_compressibility"].tolist() == [0.25, 0.3]
    assert table.weights["own"].tolist() == [0.7, 0.0]
    assert table.valid.all()
    with (
        build(RewardsConfig.model_validate({"ocr": {}})) as rewards,
        pytest.raises(ConfigError, match="is not set"),
    ):
        rewards.require_mixes(one.metadata for one in prompts)


def test_each_reward_is_compared_where_it_counts():
    """A group per data set, each with one reward: as if each were alone."""
    nan = math.nan
    rewards = {
        "a": torch.tensor([0.0, 0.5, 1.0, nan, nan, nan]),
        "b": torch.tensor([nan, nan, nan, 20.0, 20.0, 80.0]),
    }
    weights = {
        "a": torch.tensor([2.0, 2.0, 2.0, 0.0, 0.0, 0.0]),
        "b": torch.tensor([0.0, 0.0, 0.0, 0.5, 0.5, 0.5]),
    }
    groups, valid = torch.tensor([0, 0, 0, 1, 1, 1]), torch.ones(6, dtype=torch.bool)
    shares = weight_shares(weights, valid)
    found = each_reward_advantages(rewards, shares, groups, valid)
    alone = torch.where(groups == 0, rewards["a"], rewards["b"])
    assert found.tolist() == pytest.approx(group_advantages(alone, groups, valid).tolist())


def test_what_is_asked_again_is_what_was_asked_and_no_more():
    """Of reward a the second image is asked alone; the service is back for the second time."""

    class Away(Given):
        def score(self, batch):
            scores = super().score(batch)
            if len(self.asked) > 1:
                return scores
            return Scores(self.name, [Missing("away", retryable=True)] * len(batch))

    scorer = Away("a")
    rows = [({"b": 1.0}, {"b": 1.0}), ({"a": 5.0, "b": 2.0}, {"a": 1.0, "b": 1.0})]
    with RewardSet([Reward(scorer), Reward(Given("b"))], by_dataset=True) as rewards:
        item = rewards.submit(batch_of(rows))
        assert rewards.collect([item]).valid.tolist() == [True, False]
        assert item.missing_for_now == 1
        rewards.ask_again([item])
        table = rewards.collect([item])
    assert scorer.asked == [["p1"], ["p1"]]
    assert table.total.tolist() == [1, 7]
    assert table.reasons == [None, None]
    assert table.details["a"] == [{}, {"prompt": "p1"}]


def test_prompts_that_a_judge_reads_have_a_target_too(tmp_path):
    (tmp_path / "texts.txt").write_text('a sign that says "OPEN"\n')
    mixture = "datasets:\n  - {name: a, path: texts.txt, rewards: [{vlm_ocr: 1.0}]}\n"
    (tmp_path / "mix.yaml").write_text(mixture)
    (prompt,) = deepgen.read(tmp_path / "mix.yaml")
    assert prompt.metadata["target"] == "OPEN"
