"""Scenes to images: Pillow's built-in font, saturated inks on white, every picture a pure function.

Glyphs and shapes are rasterised once and pasted with numpy: about 0.3 ms a picture, so 40 000
take some 12 s. Lengths are given for a 64-pixel picture and scale with `size`.
"""

import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from atelier.data.scenes import GRID, Scene, SceneObject, Word
from atelier.errors import DataError

PAPER = (255, 255, 255)
# Each ink leaves at least one channel dark, so ink and paper separate by the darkest channel.
INKS: dict[str, tuple[int, int, int]] = {
    "black": (0, 0, 0),
    "red": (215, 10, 10),
    "blue": (15, 35, 215),
    "green": (0, 125, 25),
    "purple": (140, 15, 165),
    "brown": (125, 65, 10),
}
REFERENCE_SIZE = 64
FONT_SIZE = 26
LETTER_GAP = 3
WORD_WIDTH = 60
SHAPE_SIZE = 15
WORD_JITTER = 3
SHAPE_JITTER = 1  # neighbours stay 4 pixels apart

Mask = NDArray[np.float32]


def render(scene: Scene, rng: random.Random | None = None, size: int = 64) -> Image.Image:
    """Draw a scene as an RGB picture of `size` x `size` pixels.

    `rng` moves the word by up to 3 and each object by up to 1 pixel; None centres them.

    Raises:
        DataError: Pillow has no FreeType, hence no scalable built-in font; `size` is under 32, or
            too small for the word (5 letters need some 40 pixels).
    """
    return Image.fromarray(_draw(scene, rng, size))


def render_objects(
    objects: Sequence[SceneObject], rng: random.Random | None = None, size: int = 64
) -> Image.Image:
    """Draw objects alone, as many as there are; the rest as `render`."""
    canvas = _paper(size)
    for item in objects:
        _draw_object(canvas, item, rng)
    return Image.fromarray((canvas + 0.5).astype(np.uint8))


def render_batch(
    scenes: Sequence[Scene], seeds: Sequence[int] | None = None, size: int = 64
) -> NDArray[np.uint8]:
    """Draw scenes as uint8 [N, size, size, 3]; picture i equals render(scene, Random(seeds[i])).

    `seeds` None centres everything.
    """
    images = np.empty((len(scenes), size, size, 3), np.uint8)
    for index, scene in enumerate(scenes):
        rng = None if seeds is None else random.Random(seeds[index])
        images[index] = _draw(scene, rng, size)
    return images


@lru_cache(maxsize=512)
def glyph_mask(letter: str, font_size: int) -> Mask:
    """Ink coverage [height, width] in [0, 1] of one letter, cropped to its ink."""
    font = _font(font_size)
    left, top, right, bottom = font.getbbox(letter)
    canvas = Image.new("L", (int(right - left) + 4, int(bottom - top) + 4))
    ImageDraw.Draw(canvas).text((2 - left, 2 - top), letter, fill=255, font=font)
    box = canvas.getbbox()
    return np.asarray(canvas.crop(box), np.float32) / np.float32(255)


@lru_cache(maxsize=64)
def shape_mask(shape: str, side: int) -> Mask:
    """Ink coverage [side, side] in [0, 1] of one shape, drawn at 8 times the size and reduced."""
    scale = 8
    end = side * scale - 1
    canvas = Image.new("L", (side * scale, side * scale))
    draw = ImageDraw.Draw(canvas)
    if shape == "circle":
        draw.ellipse((0, 0, end, end), fill=255)
    elif shape == "square":
        inset = side * scale // 16
        draw.rectangle((inset, inset, end - inset, end - inset), fill=255)
    elif shape == "triangle":
        draw.polygon([(end / 2, 0), (end, end), (0, end)], fill=255)
    else:
        low, high = side * scale / 3, side * scale * 2 / 3
        draw.rectangle((low, 0, high, end), fill=255)
        draw.rectangle((0, low, end, high), fill=255)
    small = canvas.resize((side, side), Image.Resampling.BOX)
    return np.asarray(small, np.float32) / np.float32(255)


@lru_cache(maxsize=64)
def _font(font_size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size=font_size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise DataError(
            "Pillow was built without FreeType, so it has no scalable built-in font: "
            "install a Pillow wheel (pip install --force-reinstall pillow)"
        )
    return font


def _draw(scene: Scene, rng: random.Random | None, size: int) -> NDArray[np.uint8]:
    canvas = _paper(size)
    if scene.word is not None:
        _draw_word(canvas, scene.word, _word_band(scene, size), rng)
    for item in scene.objects:
        _draw_object(canvas, item, rng)
    return (canvas + 0.5).astype(np.uint8)


def _paper(size: int) -> Mask:
    if size < REFERENCE_SIZE // 2:
        raise DataError(f"picture size {size}: at least {REFERENCE_SIZE // 2} pixels")
    canvas = np.empty((size, size, 3), np.float32)
    canvas[:] = PAPER
    return canvas


def _draw_word(
    canvas: Mask, word: Word, band: tuple[float, float], rng: random.Random | None
) -> None:
    size = canvas.shape[0]
    masks, gap = _fit(word.text, size)
    width = sum(mask.shape[1] for mask in masks) + gap * (len(masks) - 1)
    height = max(mask.shape[0] for mask in masks)
    top, bottom = band
    x = (size - width) / 2 + _jitter(rng, min(_scaled(WORD_JITTER, size), (size - width) // 2 - 1))
    y = (top + bottom - height) / 2
    y += _jitter(rng, min(_scaled(WORD_JITTER, size), int(bottom - top - height) // 2 - 1))
    baseline = round(y) + height
    column = round(x)
    for mask in masks:
        # Letters stand on the baseline; only Q reaches below it, by a pixel or two.
        _paste(canvas, mask, baseline - mask.shape[0], column, word.colour)
        column += mask.shape[1] + gap


def _fit(text: str, size: int) -> tuple[list[Mask], int]:
    """Glyphs at the largest font size, up to `FONT_SIZE`, at which the word fits the width."""
    gap = _scaled(LETTER_GAP, size)
    for font_size in range(_scaled(FONT_SIZE, size), 5, -1):
        masks = [glyph_mask(letter, font_size) for letter in text]
        width = sum(mask.shape[1] for mask in masks) + gap * (len(masks) - 1)
        if width <= _scaled(WORD_WIDTH, size):
            return masks, gap
    raise DataError(f"word {text!r} does not fit a picture of {size} pixels")


def _draw_object(canvas: Mask, item: SceneObject, rng: random.Random | None) -> None:
    size = canvas.shape[0]
    mask = shape_mask(item.shape, _scaled(SHAPE_SIZE, size))
    reach = _scaled(SHAPE_JITTER, size)
    corner = [
        round((index + 0.5) * size / GRID - mask.shape[0] / 2 + _jitter(rng, reach))
        for index in item.cell
    ]
    _paste(canvas, mask, corner[0], corner[1], item.colour)


def _word_band(scene: Scene, size: int) -> tuple[float, float]:
    """Top and bottom of the rows that are the word's own."""
    row = size / GRID
    if scene.word_relation is None:
        return 0.0, float(size)
    return (0.0, size - row) if scene.word_relation == "above" else (row, float(size))


def _paste(canvas: Mask, mask: Mask, top: int, left: int, colour: str) -> None:
    height, width = mask.shape
    region = canvas[top : top + height, left : left + width]
    cover = mask[..., None]
    region += cover * (np.asarray(INKS[colour], np.float32) - region)


def _jitter(rng: random.Random | None, reach: int) -> int:
    return 0 if rng is None or reach < 1 else rng.randint(-reach, reach)


def _scaled(length: int, size: int) -> int:
    return max(1, round(length * size / REFERENCE_SIZE))
