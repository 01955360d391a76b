"""Rewards of one's own: functions and classes by name, and why one cannot be used."""

import math
import sys

import pytest
from PIL import Image

from atelier.config.custom_rewards import function_problem
from atelier.config.sections.rewards import RewardsConfig
from atelier.errors import ConfigError
from atelier.rewards import Missing, ScoreBatch, build
from atelier.rewards.checks import checked
from atelier.rewards.registry import make_scorers
from tests.unit.test_config_plan import planned, refusal

MODULE = """
from pathlib import Path
from atelier.rewards import Missing, ScoreBatch, Scores, reward

def plain(images, prompts, metadata, factor=1.0):
    return [factor * len(prompt) for prompt in prompts]

def some(images, prompts, metadata):
    return [None, float("nan"), (2.0, {"seen": "x"}), Missing("away", True), (None, {"why": 1})]

@reward(direction="upwards")
def wrong(images, prompts, metadata):
    return []

@reward(value_range=(1.0, 0.0))
def backwards(images, prompts, metadata):
    return []

class Whole:
    direction = "lower_is_better"
    value_range = (0.0, 9.0)
    version = "7"
    def __init__(self, start=0.0):
        self.start = start
    def score(self, batch):
        return Scores(self.name, [self.start + one for one in batch.group_ids])
    def weights(self):
        return ()
    def golden(self):
        return ScoreBatch([], [], [], []), [], 0.0

class Half:
    def score(self, batch):
        return []

number = 3
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_rewards.py").write_text(MODULE)
    (folder / "broken_rewards.py").write_text("import nothing_of_this_name\nf = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def configured(function, **section):
    return RewardsConfig.model_validate({"custom": {"mine": {"function": function, **section}}})


def made(function, **section):
    return make_scorers(configured(function, **section), {})["mine"][0]


def batch_of(count):
    images = [Image.new("RGB", (4, 4))] * count
    return ScoreBatch(images, ["p" * n for n in range(count)], [{}] * count, list(range(count)))


def test_a_function_scores_with_its_parameters():
    scorer = made("own_rewards:plain", parameters={"factor": 2.0})
    assert scorer.name == "mine"
    assert scorer.score(batch_of(3)).values == [0.0, 2.0, 4.0]
    assert scorer.value_range == (-math.inf, math.inf)
    assert scorer.version.startswith("own_rewards:plain@")
    assert scorer.golden()[1] == []


def test_what_has_no_score_is_missing():
    scores = checked(made("own_rewards:some").score(batch_of(5)), 5)
    assert scores.values[2] == 2.0
    assert scores.values[3] == Missing("away", True)
    assert all(isinstance(scores.values[index], Missing) for index in (0, 1, 4))
    assert list(scores.details) == [{}, {}, {"seen": "x"}, {}, {"why": 1}]


def test_too_few_scores_are_none_at_all():
    with build(configured("own_rewards:some")) as rewards:
        table = rewards.collect([rewards.submit(batch_of(4))])
    assert not table.valid.any()
    assert "5 scores for 4 images" in table.reasons[0]


def test_a_class_is_a_scorer():
    scorer = made("own_rewards:Whole", parameters={"start": 1.0})
    assert (scorer.name, scorer.direction, scorer.version) == ("mine", "lower_is_better", "7")
    assert scorer.score(batch_of(2)).values == [1.0, 2.0]


@pytest.mark.parametrize(
    ("function", "section", "key", "reason"),
    [
        ("no_such_module:f", {}, "function", "no module no_such_module"),
        ("atelier.rewards.no_such:f", {}, "function", "no module atelier.rewards.no_such"),
        ("own_rewards.deeper:f", {}, "function", "no module own_rewards.deeper"),
        ("broken_rewards:f", {}, "function", "nothing_of_this_name"),
        ("own_rewards:absent", {}, "function", "own_rewards has no absent"),
        ("own_rewards:number", {}, "function", "no function or class number"),
        ("own_rewards:plain", {"parameters": {"size": 1}}, "parameters", "size"),
        ("own_rewards:Whole", {"parameters": {"size": 1}}, "parameters", "size"),
        ("own_rewards:Half", {}, "function", "has no direction, value_range, version, weights"),
        ("own_rewards:wrong", {}, "function", "upwards"),
        ("own_rewards:backwards", {}, "function", "value_range"),
    ],
)
def test_what_cannot_be_used_names_the_key(function, section, key, reason):
    with pytest.raises(ConfigError, match=rf"rewards\.custom\.mine\.{key}") as caught:
        made(function, **section)
    assert reason in str(caught.value)


@pytest.mark.parametrize("function", ["f", "a:b:c", "a b:c", ":f", "a:", "../a:f"])
def test_a_name_of_another_form_is_refused(function):
    with pytest.raises(ValueError, match="function"):
        configured(function)


def test_the_plan_looks_for_the_module_and_imports_nothing():
    own = "rewards.custom.mine.function"
    assert f"{own}: there is no module missing_rewards" in refusal(f"{own}=missing_rewards:f")
    planned(f"{own}=broken_rewards:f")  # what is in it is known when it is imported
    assert function_problem("examples.rewards.contrast:contrast") is None


def test_the_worked_example():
    scorer = made("examples.rewards.contrast:contrast")
    batch, expected, tolerance = scorer.golden()
    assert scorer.score(batch).values == pytest.approx(expected, abs=tolerance)
    config = configured("examples.rewards.contrast:contrast", parameters={"most": 255.0})
    with build(config) as rewards:
        table = rewards.collect([rewards.submit(batch)])
    assert table.total.tolist() == [0.0, 0.5]
    assert table.details["mine"][1] == {"std": 127.5}


def test_other_parameters_are_another_digest():
    digests = {
        make_scorers(configured("own_rewards:plain", parameters=one), {})["mine"][1]
        for one in ({}, {"factor": 2.0})
    }
    assert len(digests) == 2


def test_a_reward_of_another_environment_is_made_here_and_says_where_it_scores():
    scorer = made("examples.rewards.image_reward:ImageReward")
    assert scorer.direction == "higher_is_better"
    batch, _, _ = scorer.golden()
    with pytest.raises(ConfigError, match=r"server\.environment: image_reward"):
        scorer.score(batch)


def test_that_reward_scores_with_its_package(monkeypatch):
    class Package:
        @staticmethod
        def load(name, device):
            assert name == "ImageReward-v1.0"
            return Package()

        def score(self, prompt, image):
            assert image.mode == "RGB"
            return len(prompt) - 2.5

    monkeypatch.setitem(sys.modules, "ImageReward", Package)
    scorer = made("examples.rewards.image_reward:ImageReward", parameters={"device": "cpu"})
    assert scorer.score(batch_of(3)).values == [-2.5, -1.5, -0.5]
    assert scorer.weights() == []
