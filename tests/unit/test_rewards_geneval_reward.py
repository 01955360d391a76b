"""GenEval as a reward: scores of what the scene world's detector finds in rendered scenes."""

import pytest
from PIL import Image

from atelier.config.sections.rewards import RewardsConfig
from atelier.data.gold import find_shapes
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject
from atelier.errors import ConfigError
from atelier.rewards import Missing, ScoreBatch, build
from atelier.rewards.registry import SCORERS
from tests.unit.test_config_plan import refusal

SCENES = "atelier.rewards.scorers.scene_detector:detect"
CIRCLE = SceneObject("circle", "red", (0, 1))
SQUARE = SceneObject("square", "blue", (2, 1))


def scorer(detector=SCENES, **settings):
    section = {"geneval": {"detector": detector, **settings}}
    return SCORERS["geneval"](RewardsConfig.model_validate(section).geneval)


def scored(objects, include, tag="colors", exclude=(), **settings):
    image = render(Scene(objects=objects))
    metadata = {"tag": tag, "include": include, "exclude": list(exclude)}
    return scorer(**settings).score(ScoreBatch([image], ["p"], [metadata], [0])).values[0]


def clause(name, count=1, **more):
    return {"class": name, "count": count, **more}


def test_the_detector_finds_shapes_colours_and_places():
    circle, square = sorted(
        find_shapes(render(Scene(objects=(CIRCLE, SQUARE)))), key=lambda one: one.box[1]
    )
    assert (circle.shape, circle.colour) == ("circle", "red")
    assert (square.shape, square.colour) == ("square", "blue")
    left, top, right, bottom = circle.box
    assert 0.3 < (left + right) / 2 < 0.7
    assert bottom < 0.4 < 0.6 < square.box[1]
    assert top >= 0
    assert find_shapes(Image.new("RGB", (64, 64), "white")) == []


@pytest.mark.parametrize(
    ("include", "soft", "strict", "official"),
    [
        ([clause("circle", color="red"), clause("square", color="blue")], 1, 1, 1),
        ([clause("circle", color="blue")], 0.5, 0, 0),
        ([clause("triangle")], 0, 0, 0),
        ([clause("circle", 2)], 0.5, 0, 0),
        ([clause("circle"), clause("square", position=["below", 0])], 1, 1, 1),
        ([clause("circle"), clause("square", position=["above", 0])], 0.75, 0, 0),
    ],
)
def test_all_three_scores(include, soft, strict, official):
    wanted = {"soft": soft, "strict": strict, "official": official}
    found = {one: scored((CIRCLE, SQUARE), include, score=one) for one in wanted}
    assert found == wanted


def test_more_than_asked_for_is_wrong_only_if_strict():
    circles = (CIRCLE, SceneObject("circle", "red", (2, 1)))
    include = [clause("circle")]
    assert scored(circles, include, score="soft") == 0
    assert scored(circles, include, score="strict") == 0
    assert scored(circles, include, score="official") == 1
    assert scored(circles, include, score="official", exclude=[clause("circle", 2)]) == 0


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"tag": "colors"},
        {"include": [clause("circle")]},
        {"tag": "colors", "include": [{"count": 1}]},
        {"tag": "colors", "include": [clause("circle", 0)]},
        {"tag": "colors", "include": "circle"},
    ],
)
def test_without_clauses_there_is_no_score(metadata):
    batch = ScoreBatch([render(Scene(objects=(CIRCLE,)))], ["p"], [metadata], [0])
    (score,) = scorer().score(batch).values
    assert isinstance(score, Missing)
    assert "metadata" in score.reason


def test_a_detector_of_yours(tmp_path, monkeypatch):
    (tmp_path / "own_detector.py").write_text(
        "from atelier.rewards.scorers.geneval import Detection\n"
        "def detect(images, metadata, name):\n"
        "    found = [Detection(name, (0, 0, 1, 1), 0.9)]\n"
        "    return [None if image.width == 1 else found for image in images]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = scorer("own_detector:detect", parameters={"name": "dog"})
    metadata = {"tag": "single_object", "include": [clause("dog")]}
    images = [Image.new("RGB", (8, 8)), Image.new("RGB", (1, 8))]
    scores = own.score(ScoreBatch(images, ["p"] * 2, [metadata] * 2, [0, 0]))
    assert scores.values[0] == 1.0
    assert "could not look" in scores.values[1].reason
    assert scores.details[0]["found"] == ["dog"]
    assert "own_detector:detect@" in own.version
    batch, expected, _ = own.golden()  # in an empty picture there is no bench
    assert own.score(batch).values == expected


def test_a_detector_that_is_not_there_is_named():
    key = "rewards.geneval.detector"
    assert f"{key}: there is no module nowhere" in refusal(f"{key}=nowhere:detect")
    with pytest.raises(ConfigError, match=r"rewards\.geneval\.detector"):
        scorer("atelier.rewards.scorers.scene_detector:absent").golden()


def test_it_is_built_by_its_section():
    with build(RewardsConfig.model_validate({"geneval": {"detector": SCENES}})) as rewards:
        assert rewards.preflight()["geneval"]["version"] == "geneval-1/soft/scenes-1"
