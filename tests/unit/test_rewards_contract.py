"""What every registered reward must do. A new reward is tested by being in the registry."""

import math

import numpy as np
import pytest
from PIL import Image

from atelier.config.rewards import OcrConfig, RewardsConfig
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.registry import JUDGED, SCORERS

# The cheap mode where a reward has one: detection is tested once, in test_rewards_ocr.
FAST = {"ocr": {"detect": False}}


@pytest.fixture(params=sorted(SCORERS), scope="module")
def scorer(request):
    section = RewardsConfig.model_validate({request.param: FAST.get(request.param, {})})
    return SCORERS[request.param](getattr(section, request.param))


def select(batch, indices):
    return ScoreBatch(
        images=[batch.images[i] for i in indices],
        prompts=[batch.prompts[i] for i in indices],
        metadata=[batch.metadata[i] for i in indices],
        group_ids=[batch.group_ids[i] for i in indices],
    )


def test_every_section_of_the_schema_has_a_scorer_of_its_name():
    sections = set(RewardsConfig.model_fields) - {"min_valid_share", "deadline", "custom"}
    assert sections == {*SCORERS, *JUDGED}
    for name in SCORERS:
        section = getattr(RewardsConfig.model_validate({name: {}}), name)
        assert SCORERS[name](section).name == name


def test_golden_scores_are_met_and_differ(scorer):
    batch, expected, tolerance = scorer.golden()
    values = scorer.score(batch).values
    assert np.abs(np.subtract(values, expected)).max() <= tolerance
    assert max(expected) - min(expected) > 2 * tolerance, "a constant scorer would pass"


def test_scores_follow_the_order_of_the_batch(scorer):
    batch, _, _ = scorer.golden()
    forward = scorer.score(batch).values
    backward = scorer.score(select(batch, range(len(batch))[::-1])).values
    assert list(backward) == list(forward)[::-1]


def test_the_same_batch_has_the_same_scores(scorer):
    batch, _, _ = scorer.golden()
    assert scorer.score(batch) == scorer.score(batch)


def test_a_score_does_not_depend_on_the_rest_of_the_batch(scorer):
    batch, _, _ = scorer.golden()
    alone = [scorer.score(select(batch, [i])).values[0] for i in range(len(batch))]
    assert alone == list(scorer.score(batch).values)
    empty = scorer.score(select(batch, []))
    assert list(empty.values) == []


def test_scores_are_in_range_and_labelled(scorer):
    batch, _, _ = scorer.golden()
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    images = [*batch.images, noise]
    count = len(images)
    scores = scorer.score(
        ScoreBatch(images, ["x"] * count, [{"target": "CAT"}] * count, [0] * count)
    )
    low, high = scorer.value_range
    assert all(low <= value <= high and math.isfinite(value) for value in scores.values)
    assert len(scores.details) == count
    assert scores.name == scorer.name
    assert scorer.direction in ("higher_is_better", "lower_is_better")
    assert scorer.version


def test_its_model_files_are_there(scorer):
    assert all(path.stat().st_size for path in scorer.weights())


def test_unusable_input_is_missing_and_never_raises(scorer):
    """No metadata, odd modes, one pixel: a number or Missing for each, and no exception."""
    images = [Image.new("RGB", (64, 64)), Image.new("L", (1, 1)), Image.new("RGBA", (3, 200))]
    metadata = [{}, {"target": None}, {"target": " "}]
    scores = scorer.score(ScoreBatch(images, ["a"] * 3, metadata, [0, 0, 0]))
    assert all(isinstance(score, float | Missing) for score in scores.values)
    if scorer.name == "ocr":
        assert all(isinstance(score, Missing) for score in scores.values)


def test_ocr_missing_says_why():
    scorer = SCORERS["ocr"](OcrConfig(detect=False))
    scores = scorer.score(ScoreBatch([Image.new("RGB", (8, 8))], ["a"], [{}], [0]))
    assert "target" in scores.values[0].reason
