"""What every registered reward must do. A new reward is tested by being in the registry."""

import math

import numpy as np
import pytest
from PIL import Image

from atelier.config.sections.rewards import CustomRewardConfig, OcrConfig, RewardsConfig
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.registry import JUDGED, SCORERS
from atelier.rewards.scorers.custom import FunctionScorer, custom_scorer
from tests.support.oracle_judge import OracleJudge
from tests.support.tiny_clip import save_tiny_clip

# The cheap mode where a reward has one: detection is tested once, in test_rewards_ocr.
FAST = {
    "ocr": {"detect": False},
    "geneval": {"detector": "atelier.rewards.scorers.scene_detector:detect"},
}
CLIP = ("clip_similarity", "pick_score")
# Of a checkpoint that the configuration chooses, nothing but the range is known.
ANY_IN_RANGE = CLIP


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return str(save_tiny_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(params=[*sorted(SCORERS), *sorted(JUDGED), "custom"], scope="module")
def scorer(request, clip):
    name, settings = request.param, None
    if name in CLIP:
        settings = {"path": clip} | ({"processor": clip} if name == "pick_score" else {})
    return made(name, settings)


def made(name, settings=None):
    if name == "custom":
        function = "examples.rewards.contrast:contrast"
        return custom_scorer("contrast", CustomRewardConfig(function=function))
    if name in JUDGED:
        section = RewardsConfig.model_validate({name: {"judge": "oracle", **(settings or {})}})
        return JUDGED[name](getattr(section, name), OracleJudge())
    section = RewardsConfig.model_validate({name: settings or FAST.get(name, {})})
    return SCORERS[name](getattr(section, name))


def select(batch, indices):
    sources = batch.source_images
    return ScoreBatch(
        images=[batch.images[i] for i in indices],
        prompts=[batch.prompts[i] for i in indices],
        metadata=[batch.metadata[i] for i in indices],
        group_ids=[batch.group_ids[i] for i in indices],
        source_images=None if sources is None else [sources[i] for i in indices],
    )


def whole_groups(scorer):
    if isinstance(scorer, FunctionScorer):
        return False
    section = RewardsConfig.model_fields[scorer.name].annotation
    return next(one for one in section.__args__ if one is not type(None)).needs_whole_groups(None)


def test_every_section_of_the_schema_has_a_scorer_of_its_name():
    settings = {"min_valid_share", "min_valid_in_group", "deadline", "replay"}
    sections = set(RewardsConfig.model_fields) - settings - {"custom"}
    assert sections == SCORERS.keys() | JUDGED.keys()
    for name in sections:
        assert made(name).name == name


def test_golden_scores_are_met_and_differ(scorer):
    batch, expected, tolerance = scorer.golden()
    values = scorer.score(batch).values
    assert np.abs(np.subtract(values, expected)).max() <= tolerance
    if scorer.name in ANY_IN_RANGE:
        assert tolerance == pytest.approx((scorer.value_range[1] - scorer.value_range[0]) / 2)
    elif scorer.name == "yes_no":
        assert values[0] > values[1]
    else:
        assert max(expected) - min(expected) > 2 * tolerance, "a constant scorer would pass"


def test_scores_follow_the_order_of_the_batch(scorer):
    batch, _, _ = scorer.golden()
    forward = scorer.score(batch).values
    backward = scorer.score(select(batch, range(len(batch))[::-1])).values
    assert list(backward) == pytest.approx(list(forward)[::-1], abs=1e-6)


def test_the_same_batch_has_the_same_scores(scorer):
    batch, _, _ = scorer.golden()
    assert scorer.score(batch) == scorer.score(batch)


def test_a_score_does_not_depend_on_the_rest_of_the_batch(scorer):
    batch, _, _ = scorer.golden()
    if not whole_groups(scorer):
        alone = [scorer.score(select(batch, [i])).values[0] for i in range(len(batch))]
        assert alone == pytest.approx(list(scorer.score(batch).values), abs=1e-6)
    empty = scorer.score(select(batch, []))
    assert list(empty.values) == []


def test_scores_are_in_range_and_labelled(scorer):
    batch, _, _ = scorer.golden()
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    images = [*batch.images, noise]
    count = len(images)
    known = {"target": "CAT", "completion": "a cat", "tag": "counting"}
    known |= batch.metadata[0] if scorer.name in ("mmmg", "scene_graph", "scene_edit") else {}
    metadata = [known | {"include": [{"class": "circle", "count": 2}]}] * count
    scores = scorer.score(
        ScoreBatch(images, ["x"] * count, metadata, [0] * count, source_images=images)
    )
    low, high = scorer.value_range
    assert all(low <= value <= high and math.isfinite(value) for value in scores.values)
    assert len(scores.details) in (0, count)
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
    asking = ("ocr", "vlm_ocr", "complex_edit", "geneval", "format", "length", "mmmg")
    if scorer.name in (*asking, "scene_graph", "scene_edit"):
        assert all(isinstance(score, Missing) for score in scores.values)


def test_ocr_missing_says_why():
    scorer = SCORERS["ocr"](OcrConfig(detect=False))
    scores = scorer.score(ScoreBatch([Image.new("RGB", (8, 8))], ["a"], [{}], [0]))
    assert "target" in scores.values[0].reason
