"""The set: order whatever the latency, typed absence, weights, deadlines, golden samples, exit."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from atelier.config.sections.rewards import JpegConfig, OcrRewardConfig, RewardsConfig
from atelier.errors import ConfigError, Stopped
from atelier.rewards import Missing, Reward, RewardSet, ScoreBatch, Scores, build, pil_images
from atelier.rewards.asking_again import pause_seconds
from atelier.rewards.scorers.jpeg import JpegCompressibility
from tests.support.patience import PATIENCE, at_once


class Scripted:
    """A scorer whose behaviour is a function of the batch."""

    direction = "higher_is_better"
    value_range = (float("-inf"), float("inf"))
    version = "1"

    def __init__(self, name, behaviour, golden=1.0):
        self.name, self.behaviour, self.expected = name, behaviour, golden

    def score(self, batch):
        return Scores(self.name, self.behaviour(batch))

    def golden(self):
        return batch_of([self.expected]), [self.expected], 1e-6


def batch_of(values):
    count = len(values)
    images = [Image.new("RGB", (4, 4))] * count
    return ScoreBatch(images, ["p"] * count, [{"value": v} for v in values], [0] * count)


def given(batch):
    return [m["value"] for m in batch.metadata]


def test_scores_come_in_the_order_submitted_whatever_the_latency():
    def slow_first(batch):
        time.sleep(0.2 if batch.metadata[0]["value"] == 0 else 0)
        return given(batch)

    with RewardSet([Reward(Scripted("a", slow_first), workers=3)]) as rewards:
        handles = [rewards.submit(batch_of([i, i + 0.5])) for i in range(4)]
        table = rewards.collect(handles)
    assert table.total.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]
    assert table.total.dtype == table.values["a"].dtype == np.float32
    assert table.valid.all()
    assert table.reasons == [None] * 8
    assert table.details == {"a": [{}] * 8}


def test_submit_returns_while_scores_are_made():
    release = threading.Event()
    with RewardSet([Reward(Scripted("a", lambda b: [release.wait(5) + 0.0]))]) as rewards:
        handle = rewards.submit(batch_of([0]))
        release.set()
        assert rewards.collect([handle]).total.tolist() == [1.0]


def test_weights_are_summed_and_weight_zero_only_logs():
    rewards = RewardSet(
        [
            Reward(Scripted("a", given), weight=2.0),
            Reward(Scripted("b", lambda b: [10.0] * len(b)), weight=-0.5),
            Reward(Scripted("log", lambda b: [Missing("away")] * len(b)), weight=0.0),
        ]
    )
    with rewards:
        table = rewards.collect([rewards.submit(batch_of([1, 2]))])
    assert table.total.tolist() == [-3, -1]
    assert table.valid.all()
    assert np.isnan(table.values["log"]).all()
    assert table.reasons == ["log: away"] * 2


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (lambda b: [float("nan"), 1.0], "nan"),
        (lambda b: [float("inf"), 1.0], "inf"),
        (lambda b: [-1e39, 1.0], "-1e+39, more than float32 holds"),
        (lambda b: [Missing("no text"), 1.0], "no text"),
        (lambda b: [None, 1.0], "None"),
    ],
)
def test_what_is_no_score_is_missing_for_that_image(behaviour, reason):
    with RewardSet([Reward(Scripted("a", behaviour))]) as rewards:
        table = rewards.collect([rewards.submit(batch_of([0, 0]))])
    assert table.valid.tolist() == [False, True]
    assert np.isnan(table.total).tolist() == [True, False]
    assert reason in table.reasons[0]


@pytest.mark.parametrize("weight", [2.0, 1e300])
def test_a_sum_that_float32_does_not_hold_is_missing_for_that_image(weight):
    """An infinite total would make the advantages of its whole group NaN."""
    rewards = [
        Reward(Scripted("a", lambda b: [-3e38, 0.0]), weight=weight),
        Reward(Scripted("b", lambda b: [3e38, 1.0]), weight=-1.0),
    ]
    with RewardSet(rewards) as rewards:
        table = rewards.collect([rewards.submit(batch_of([0, 0]))])
    assert table.valid.tolist() == [False, True]
    assert np.isnan(table.total).tolist() == [True, False]
    assert table.reasons == ["total: the weighted sum is more than float32 holds", None]


@pytest.mark.parametrize("weight", [1e300, -1.1e6, float("nan")])
def test_a_weight_that_drowns_all_others_is_refused(weight):
    with pytest.raises(ValidationError, match=r"jpeg_compressibility\.weight"):
        RewardsConfig.model_validate({"jpeg_compressibility": {"weight": weight}})


def fails(batch):
    if batch.metadata[0]["value"] == 1:
        raise SystemExit("scorer gone")
    return given(batch)


def miscounts(batch):
    return [1.0] if batch.metadata[0]["value"] == 1 else given(batch)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [(fails, "SystemExit: scorer gone"), (miscounts, "1 scores for 2 images")],
)
def test_a_failing_batch_is_missing_with_its_reason_and_the_next_is_scored(
    behaviour, reason, caplog
):
    with RewardSet([Reward(Scripted("a", behaviour))]) as rewards:
        handles = [rewards.submit(batch_of([1, 1])), rewards.submit(batch_of([2]))]
        table = rewards.collect(handles)
    assert table.valid.tolist() == [False, False, True]
    assert reason in table.reasons[0]
    assert reason in caplog.text


def test_after_the_deadline_scores_are_missing_and_the_hung_thread_is_replaced():
    release = threading.Event()

    def hangs(batch):
        if batch.metadata[0]["value"] == 0:
            release.wait()
        return given(batch)

    with RewardSet([Reward(Scripted("a", hangs))]) as rewards:
        with at_once():
            table = rewards.collect([rewards.submit(batch_of([0]))], deadline_seconds=0.1)
        assert table.reasons == ["a: no score before the deadline"]
        later = rewards.collect([rewards.submit(batch_of([3]))], deadline_seconds=PATIENCE)
        assert later.total.tolist() == [3]
        release.set()


def test_no_images_make_an_empty_table():
    with RewardSet([Reward(Scripted("a", given))]) as rewards:
        for handles in ([], [rewards.submit(batch_of([]))]):
            table = rewards.collect(handles)
            assert len(table) == 0


def test_preflight_tells_an_outage_from_a_wrong_scorer():
    with RewardSet([Reward(Scripted("a", given, golden=0.25))]) as rewards:
        assert rewards.preflight()["a"]["scores"] == [0.25]
    with (
        RewardSet([Reward(Scripted("a", lambda b: [0.0]))]) as rewards,
        pytest.raises(ConfigError, match=r"rewards\.a: golden sample 0 scored 0 instead of 1"),
    ):
        rewards.preflight()
    with (
        RewardSet([Reward(Scripted("a", fails))]) as rewards,
        pytest.raises(Stopped, match="scorer gone"),
    ):
        rewards.preflight()


def test_build_takes_the_sections_that_are_set():
    config = RewardsConfig(
        ocr=OcrRewardConfig(detect=False, weight=1.0, workers=2),
        jpeg_compressibility=JpegConfig(weight=0.0),
        deadline=30,
    )
    with build(config) as rewards:
        assert rewards.weights == {"ocr": 1.0, "jpeg_compressibility": 0.0}
        assert rewards.deadline_seconds == 30
        assert set(rewards.preflight()) == {"ocr", "jpeg_compressibility"}


@pytest.mark.parametrize(
    "config",
    [
        RewardsConfig(),
        RewardsConfig(jpeg_compressibility=JpegConfig(weight=0.0)),
    ],
)
def test_nothing_to_train_on_is_a_config_error(config):
    with pytest.raises(ConfigError, match="weight"):
        build(config)


def test_float_images_are_refused():
    with pytest.raises(ValueError, match="uint8"):
        pil_images(np.zeros((1, 8, 8, 3), dtype=np.float32))
    assert pil_images(np.full((2, 4, 6, 3), 7, dtype=np.uint8))[1].getpixel((5, 3)) == (7, 7, 7)


HUNG = """
import threading
from atelier.rewards import Reward, RewardSet, ScoreBatch
class Hung:
    name, direction, value_range, version = "hung", "higher_is_better", (0, 1), "1"
    def score(self, batch):
        threading.Event().wait()
rewards = RewardSet([Reward(Hung())])
table = rewards.collect([rewards.submit(ScoreBatch([], [], [], []))], deadline_seconds=0.05)
raise SystemExit(7)
"""


def test_a_hung_scorer_does_not_keep_the_process_alive():
    assert subprocess.run([sys.executable, "-c", HUNG], timeout=20, check=False).returncode == 7


def test_what_is_missing_for_now_is_asked_for_again_and_what_is_there_stands():
    """Twice the batch is scored as a whole; the first time its second image has no score."""
    calls = []

    def recovers(batch):
        calls.append(given(batch))
        if len(calls) == 1:
            return [1.0, Missing("busy", retryable=True), Missing("no target")]
        return [9.0, 2.0, 9.0]

    with RewardSet([Reward(Scripted("a", recovers)), Reward(Scripted("b", given))]) as rewards:
        item = rewards.submit(batch_of([10, 20, 30]))
        first = rewards.collect([item])
        assert first.valid.tolist() == [True, False, False]
        assert item.missing_for_now == 1
        rewards.ask_again([item])
        second = rewards.collect([item])
    assert calls == [[10, 20, 30]] * 2
    assert second.values["a"][:2].tolist() == [1, 2]
    assert second.total[:2].tolist() == [11, 22]
    assert second.reasons == [None, None, "a: no target"]
    assert item.missing_for_now == 0


@pytest.mark.parametrize(
    ("behaviour", "lacking"),
    [
        (lambda b: 1 / 0, 2),
        (lambda b: time.sleep(30), 2),
        (lambda b: [1.0], 0),
        (lambda b: [Missing("no target")] * 2, 0),
    ],
    ids=["raises", "hangs", "another count", "for good"],
)
def test_which_scores_may_be_had_later(behaviour, lacking):
    with RewardSet([Reward(Scripted("a", behaviour))]) as rewards:
        item = rewards.submit(batch_of([0, 0]))
        rewards.collect([item], deadline_seconds=0.3)
    assert item.missing_for_now == lacking


def test_a_scorer_that_says_it_can_never_score_is_not_asked_again():
    def refuses(batch):
        raise ConfigError("no model file")

    with RewardSet([Reward(Scripted("a", refuses))]) as rewards:
        item = rewards.submit(batch_of([0]))
        rewards.collect([item])
        rewards.ask_again([item])
    assert not item.futures


def test_seconds_are_counted_from_the_submission():
    def slow(batch):
        time.sleep(0.05)
        return given(batch)

    with RewardSet([Reward(Scripted("a", slow))]) as rewards:
        items = [rewards.submit(batch_of([0])) for _ in range(2)]
        rewards.collect(items)
    first, second = (item.seconds["a"] for item in items)
    assert 0.05 <= first < second >= 0.1


def test_pauses_grow_and_never_outlast_a_deadline():
    assert [pause_seconds(round, 600) for round in range(4)] == [2, 8, 32, 60]
    assert pause_seconds(900, 1e9) == 60
    assert pause_seconds(3, 1.5) == 1.5


@pytest.mark.parametrize(
    "golden", [lambda: None, lambda: 1 / 0, lambda: (batch_of_two(), [1.0], 0.1), lambda: (1, 2, 3)]
)
def test_a_golden_sample_that_cannot_be_used_names_the_reward(golden):
    class Odd(JpegCompressibility):
        def golden(self):
            return golden()

    with (
        RewardSet([Reward(Odd(JpegConfig()))]) as rewards,
        pytest.raises(ConfigError, match=r"rewards\.jpeg_compressibility: its golden sample"),
    ):
        rewards.preflight()


def batch_of_two():
    return JpegCompressibility(JpegConfig()).golden()[0]
