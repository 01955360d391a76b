"""Regions of pictures: the published rules by hand, and the classical counter on scenes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from atelier.config.sections.regions import RegionsConfig
from atelier.data.render import render
from atelier.data.scenes import Scene, SceneObject, Word, sample_scene
from atelier.errors import ConfigError
from atelier.mmmg.regions import PUBLISHED, ReadText, Regions, merged, text_lines
from atelier.rewards.regions.base import region_counter
from atelier.rewards.regions.classical import ClassicalCounter, areas
from atelier.rewards.regions.sam2 import mask_boxes


def text(left, top, right, bottom, confidence=0.9):
    return ReadText([(left, top), (right, top), (right, bottom), (left, bottom)], confidence)


# The rules --------------------------------------------------------------------------------------


def test_text_counts_where_it_is_sure_and_large():
    texts = [text(0, 0, 50, 20, 0.85), text(0, 100, 50, 120, 0.8499), text(0, 200, 50, 219.9)]
    assert text_lines(texts, PUBLISHED) == [(0, 0, 50, 20)]
    turned = ReadText([(0, 0), (15, 15), (10, 20), (-5, 5)], 0.9)
    assert text_lines([turned], PUBLISHED) == [], "its short edge is 7, its box 20 high"


def test_pieces_of_a_line_are_joined_and_the_line_moves_half_way():
    """Middles 50, 70, 80: 70 is 20 from 50, and 80 is 20 from the line's new middle, 60."""
    middles = (80, 50, 70)
    texts = [text(10 * one, one - 15, 10 * one + 40, one + 15) for one in middles]
    assert text_lines(texts, PUBLISHED) == [(500, 35, 840, 95)]
    far = [*texts[1:], text(0, 66, 40, 96)]
    assert text_lines(far, PUBLISHED) == [(500, 35, 740, 85), (0, 66, 40, 96)]


def test_things_under_text_and_around_it_are_the_text():
    lines = [text(100, 100, 200, 130)]
    letter, panel, beside = (105, 105, 120, 125), (0, 0, 900, 900), (300, 100, 400, 130)
    touching = (180, 100, 280, 130)  # a fifth of it is text
    mostly = (115, 100, 215, 130)  # 0.85 of it
    assert merged([letter, panel, beside, touching, mostly], lines, PUBLISHED) == Regions(2, 1)
    assert merged([panel, beside], [], PUBLISHED).count == 2
    exactly = (120, 100, 220, 130)
    assert merged([exactly], lines, PUBLISHED).things == 1, "0.8 is not more than 0.8"
    assert merged([(150, 110, 150, 110)], lines, PUBLISHED).things == 1, "without extent"


def test_a_narrow_line_hides_things_but_is_no_region():
    rules = PUBLISHED.scaled(0.25)
    assert rules.shortest_edge == 5
    assert rules.min_confidence == PUBLISHED.min_confidence
    narrow = [text(0, 0, 8, 8)]
    assert merged([(0, 0, 8, 8)], narrow, rules) == Regions(0, 1)
    assert merged([(0, 0, 8, 8)], narrow, PUBLISHED) == Regions(1, 0)
    assert merged([(0, 0, 2, 8)], [text(0, 0, 2.4, 8)], PUBLISHED.scaled(0.1)).count == 1


def test_masks_say_width_and_height():
    assert mask_boxes([{"bbox": [1, 2, 30, 40]}]) == [(1, 2, 31, 42)]


# Areas of one colour ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [64, 256, 1024])
def test_shapes_are_counted_one_by_one(size):
    counter = ClassicalCounter(reads_text=False)
    for seed in range(30 if size < 1024 else 6):
        scene = sample_scene(random.Random(seed), "shapes")
        picture = render(scene, random.Random(seed), size)
        assert counter.count(picture) == Regions(len(scene.objects), 0), scene
        if size == 64:
            soft = picture.filter(ImageFilter.GaussianBlur(0.7))
            assert counter.count(soft).count == len(scene.objects)


@pytest.mark.parametrize("size", [64, 512])
def test_a_word_is_one_region(size):
    counter = ClassicalCounter()
    row = tuple(SceneObject("triangle", "green", (2, column)) for column in range(3))
    for objects in ((), row):
        picture = render(Scene(objects, Word("BCKA", "blue")), size=size)
        assert counter.count(picture) == Regions(len(objects), 1)


def test_text_of_a_small_picture_may_be_small():
    """Less than 20 of 512 pixels high, as 40 of 1024."""
    picture = Image.new("RGB", (512, 512), "white")
    font = ImageFont.load_default(size=14)
    ImageDraw.Draw(picture).text((60, 240), "THE WATER CYCLE", fill="black", font=font)
    assert ClassicalCounter().count(picture) == Regions(0, 1)


def test_shapes_are_no_text():
    """The reader takes crosses in a row for "+++", in one line."""
    row = tuple(SceneObject("cross", "red", (1, column)) for column in range(3))
    assert ClassicalCounter().count(render(Scene(row), size=256)) == Regions(3, 0)


def test_what_fills_the_picture_is_its_ground_and_specks_and_lines_are_no_regions():
    picture = Image.new("RGB", (400, 200), "white")
    assert areas(picture) == []
    draw = ImageDraw.Draw(picture)
    draw.rectangle((20, 20, 59, 59), "red")
    draw.rectangle((60, 20, 99, 59), "blue")
    draw.line((200, 20, 300, 120), "black", 1)
    draw.point((350, 150), "black")
    # 40 pixels of 400 a side, seen at 256: 25.6 of 256.
    assert areas(picture) == [
        pytest.approx((0.05, 0.05, 0.15, 0.15), abs=0.005),
        pytest.approx((0.15, 0.05, 0.25, 0.15), abs=0.005),
    ]


def test_a_slow_gradient_is_one_area_and_a_chequerboard_many():
    slope = np.tile(np.linspace(0, 255, 256).astype(np.uint8), (256, 1))
    assert areas(Image.fromarray(slope).convert("RGB")) == []
    board = np.indices((9, 9)).sum(axis=0) % 2 * 255
    picture = Image.fromarray(board.astype(np.uint8)).resize((576, 576), Image.Resampling.NEAREST)
    assert len(areas(picture.convert("RGB"))) == 81


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1"])
def test_pictures_of_any_kind_are_counted(mode):
    counter = ClassicalCounter(reads_text=False)
    for size in ((1, 1), (3, 200), (64, 64)):
        assert counter.count(Image.new(mode, size)).count == 0


# Which there are --------------------------------------------------------------------------------


def test_sam2_says_what_it_lacks(tmp_path):
    missing = RegionsConfig(counter="sam2", checkpoint=str(tmp_path / "sam2.pt"))
    counter = region_counter(missing, "rewards.mmmg.regions")
    with pytest.raises(ConfigError, match=r"rewards\.mmmg\.regions\.checkpoint: there is no file"):
        counter.count(Image.new("RGB", (8, 8)))
    (tmp_path / "sam2.pt").write_bytes(b"weights")
    assert counter.weights()[0] == tmp_path / "sam2.pt"
    with pytest.raises(ConfigError, match=r"needs the package sam2 .* counter: classical"):
        counter.count(Image.new("RGB", (8, 8)))


def test_settings_that_exclude_each_other():
    assert not list(RegionsConfig(read_text=False).conflicts())
    found = dict(RegionsConfig(counter="sam2", read_text=False).conflicts())
    assert found.keys() == {"checkpoint", "read_text"}


def test_versions_tell_counters_apart():
    configs = [
        RegionsConfig(),
        RegionsConfig(read_text=False),
        RegionsConfig(counter="sam2", checkpoint="x.pt"),
    ]
    versions = {region_counter(one, "k").version for one in configs}
    assert len(versions) == 3
    assert all(path.is_file() for path in region_counter(configs[0], "k").weights())
