"""The gold check: does a picture show what its scene says? Exact rules, no learning.

Ink is separated from paper, split into connected components, and each is named by its colour and by
the letter or shape template it correlates with best. No policy is trained on this metric; OCR and
judges are the proxies that it keeps honest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from scipy import ndimage

from atelier.data.render import INKS, SHAPE_SIZE, glyph_mask, shape_mask
from atelier.data.scenes import GRID, SHAPES, Scene, SceneObject, Word, facts
from atelier.errors import DataError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
INK_THRESHOLD = 0.45  # share of the darkest ink's darkness from which a pixel is ink
FAINTEST_INK = 0.35  # a picture whose darkest pixels are lighter than this holds no ink
MIN_AREA = 10 / 64**2  # share of the picture below which a component is a speck
MAX_SIDE = 0.45  # share of the picture's side above which a component is no letter and no shape
MATCH_THRESHOLD = 0.6  # correlation with the best template from which it is named
FONT_SIZES = (14, 19, 26)  # long words are drawn smaller, and small glyphs have other proportions
ASPECT_TOLERANCE = 0.5  # in log(width / height)
PATCH = 20

Floats = NDArray[np.float32]
Point = tuple[float, float]  # row and column, in shares of the picture


@dataclass(frozen=True)
class GoldResult:
    """`facts`: name to whether it holds; `score`: the share that holds, in [0, 1]; `text`: the
    letters read, "?" where a mark is no letter; `nouns`: "red circle" of every shape found."""

    score: float
    facts: dict[str, bool]
    text: str
    nouns: tuple[str, ...]


@dataclass(frozen=True)
class FoundShape:
    """A shape in a picture; `box` is left, top, right, bottom in shares of the picture.

    `shape` is "" for a mark that is no shape.
    """

    shape: str
    colour: str
    box: tuple[float, float, float, float]

    @property
    def centre(self) -> Point:
        left, top, right, bottom = self.box
        return (top + bottom) / 2, (left + right) / 2


@dataclass(frozen=True)
class _Mark:
    """One component. `letter` and `shape` are None where nothing matches well enough."""

    letter: str | None
    shape: str | None
    colour: str
    row: float  # centre, in shares of the picture
    column: float
    box: tuple[float, float, float, float]  # left, top, right, bottom, in shares as well

    @property
    def noun(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def centre(self) -> Point:
        return self.row, self.column


def check(image: Image.Image | NDArray[np.uint8], scene: Scene) -> GoldResult:
    """Check a picture (RGB, or uint8 [H, W, 3], of any square size) against its scene.

    Raises:
        DataError: the array is not uint8 [H, W, 3].
    """
    marks = _read_marks(_pixels(image), scene)
    objects = [mark for mark in marks if mark.shape is not None or scene.word is None]
    letters = [mark for mark in marks if mark.shape is None and scene.word is not None]
    held = dict.fromkeys(facts(scene), False)
    if scene.word is not None:
        held.update(_check_word(letters, scene.word))
    if scene.objects:
        held.update(_check_objects(objects, scene))
    if scene.word_relation is not None:
        held["word relation"] = _check_word_relation(letters, objects, scene)
    text = "".join(mark.letter or "?" for mark in letters)
    nouns = tuple(mark.noun for mark in objects if mark.shape is not None)
    return GoldResult(sum(held.values()) / len(held), held, text, nouns)


def find_shapes(image: Image.Image | NDArray[np.uint8], unnamed: bool = False) -> list[FoundShape]:
    """The shapes in a picture (as `check` takes it), from left to right, whatever its scene.

    Args:
        unnamed: whether marks that are no shape are told as well.

    Raises:
        DataError: the array is not uint8 [H, W, 3].
    """
    marks = _read_marks(_pixels(image), _SOME_SHAPES)
    return [
        FoundShape(mark.shape or "", mark.colour, mark.box)
        for mark in marks
        if unnamed or mark.shape is not None
    ]


def check_batch(
    images: Iterable[Image.Image | NDArray[np.uint8]], scenes: Sequence[Scene]
) -> list[GoldResult]:
    """`check` for each picture and its scene, in order; about 3 ms a picture."""
    return [check(image, scene) for image, scene in zip(images, scenes, strict=True)]


def relation_between(first: Point, second: Point) -> str | None:
    """How what is centred at one point stands to what is at another: by the longer distance.

    One of "above", "below", "left of", "right of"; None where they are less than half a cell apart.
    """
    down, across = second[0] - first[0], second[1] - first[1]
    if max(abs(down), abs(across)) < 0.5 / GRID:
        return None
    if abs(down) > abs(across):
        return "above" if down > 0 else "below"
    return "left of" if across > 0 else "right of"


def _check_word(letters: list[_Mark], word: Word) -> dict[str, bool]:
    text = word.text
    read = "".join(mark.letter or "?" for mark in letters)
    matched = _aligned(text, read)
    held = {f"letter {i + 1}": i in matched for i in range(len(text))}
    # A mark that is no letter counts as one too many, so scribble beside a word is not free.
    held["letters"] = len(read) == len(text) and "?" not in read
    inks = [letters[j].colour for j in matched.values()]
    held["word colour"] = bool(inks) and 2 * inks.count(word.colour) > len(inks)
    return held


def _check_objects(objects: list[_Mark], scene: Scene) -> dict[str, bool]:
    nouns = [mark.noun for mark in objects]
    held = {noun: nouns.count(noun) == count for noun, count in scene.groups.items()}
    named = all(mark.shape is not None for mark in objects)
    held["objects"] = named and len(objects) == len(scene.objects)
    if scene.relation is not None:
        first, second = (
            [mark for mark in objects if mark.noun == item.noun] for item in scene.objects
        )
        held["relation"] = (
            len(first) == len(second) == 1
            and relation_between(first[0].centre, second[0].centre) == scene.relation
        )
    return held


def _check_word_relation(letters: list[_Mark], objects: list[_Mark], scene: Scene) -> bool:
    if not any(mark.letter for mark in letters) or not objects:
        return False
    gap = float(np.mean([mark.row for mark in objects]) - np.mean([mark.row for mark in letters]))
    return (gap if scene.word_relation == "above" else -gap) > 0.5 / GRID


def _aligned(text: str, read: str) -> dict[int, int]:
    """Positions of a longest common subsequence: index in `text` to index in `read`."""
    length = np.zeros((len(text) + 1, len(read) + 1), int)
    for i in reversed(range(len(text))):
        for j in reversed(range(len(read))):
            length[i, j] = (
                length[i + 1, j + 1] + 1
                if text[i] == read[j]
                else max(length[i + 1, j], length[i, j + 1])
            )
    pairs, i, j = {}, 0, 0
    while i < len(text) and j < len(read):
        if text[i] == read[j]:
            pairs[i] = j
            i, j = i + 1, j + 1
        elif length[i + 1, j] >= length[i, j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _read_marks(pixels: Floats, scene: Scene) -> list[_Mark]:
    """The named components of a picture, from left to right."""
    absorption = 1 - pixels / 255
    darkness = absorption.max(axis=2)
    darkest = float(np.quantile(darkness, 0.98))
    if darkest < FAINTEST_INK:
        return []
    labels, _ = ndimage.label(darkness > INK_THRESHOLD * darkest, structure=np.ones((3, 3), int))
    areas = np.bincount(labels.ravel())
    marks = []
    for index, box in enumerate(ndimage.find_objects(labels), start=1):
        if areas[index] < MIN_AREA * darkness.size:
            continue
        rows, columns = box
        patch = _normalised(np.where(labels[box] == index, darkness[box], 0))
        height, width = rows.stop - rows.start, columns.stop - columns.start
        fits = max(height / darkness.shape[0], width / darkness.shape[1]) <= MAX_SIDE
        letter, shape = _name(patch, width / height, scene) if fits else (None, None)
        # Blur and chroma subsampling spread the ink but keep its sum, so sum over a margin too.
        around = tuple(slice(max(0, side.start - 2), side.stop + 2) for side in box)
        own = (labels[around] == index) | (labels[around] == 0)
        colour = _ink(absorption[around][own].sum(axis=0))
        row = (rows.start + rows.stop) / 2 / darkness.shape[0]
        column = (columns.start + columns.stop) / 2 / darkness.shape[1]
        edges = (
            columns.start / darkness.shape[1],
            rows.start / darkness.shape[0],
            columns.stop / darkness.shape[1],
            rows.stop / darkness.shape[0],
        )
        marks.append(_Mark(letter, shape, colour, row, column, edges))
    return sorted(marks, key=lambda mark: mark.column)


def _name(patch: Floats, aspect: float, scene: Scene) -> tuple[str | None, str | None]:
    """The best letter or the best shape for a patch, whichever correlates better."""
    names, patches, aspects = _templates(scene.kind)
    penalty = np.exp(-(((np.log(aspect) - aspects) / ASPECT_TOLERANCE) ** 2))
    match = (patches @ patch) * penalty
    best = int(match.argmax())
    if match[best] < MATCH_THRESHOLD:
        return None, None
    name = names[best]
    return (None, name) if name in SHAPES else (name, None)


@lru_cache(maxsize=3)
def _templates(kind: str) -> tuple[list[str], Floats, Floats]:
    """Names, patches [templates, (PATCH + 4)^2] and log aspects of what such a scene can hold.

    Each comes sharp and softened, because a VAE's decode is soft.
    """
    masks: list[tuple[str, Floats]] = []
    if kind != "shapes":
        masks += [(letter, glyph_mask(letter, size)) for size in FONT_SIZES for letter in LETTERS]
    if kind != "word":
        masks += [(shape, shape_mask(shape, SHAPE_SIZE)) for shape in SHAPES]
    names, patches, aspects = [], [], []
    for name, mask in masks:
        for radius in (0.0, 1.0):
            ink = _cropped(_softened(mask, radius))
            names.append(name)
            patches.append(_normalised(ink))
            aspects.append(np.log(ink.shape[1] / ink.shape[0]))
    return names, np.stack(patches), np.asarray(aspects, np.float32)


def _softened(mask: Floats, radius: float) -> Floats:
    padded = np.pad(mask, 4)
    picture = Image.fromarray((padded * 255).astype(np.uint8))
    return np.asarray(picture.filter(ImageFilter.GaussianBlur(radius)), np.float32) / np.float32(
        255
    )


def _cropped(mask: Floats) -> Floats:
    ink = mask > INK_THRESHOLD
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    crop = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return np.where(crop > INK_THRESHOLD, crop, 0)


def _normalised(mask: Floats) -> Floats:
    """Stretched to PATCH x PATCH, framed by paper (or a square would be constant), zero mean, unit
    norm: a dot product is a correlation."""
    picture = Image.fromarray(mask.astype(np.float32)).resize((PATCH, PATCH), _BILINEAR)
    patch: Floats = np.pad(np.asarray(picture, np.float32), 2).ravel()
    patch -= patch.mean()
    patch /= max(float(np.linalg.norm(patch)), 1e-6)
    return patch


def _ink(absorbed: Floats) -> str:
    """The ink whose absorption points the same way: mixing with white paper does not turn it."""
    direction = absorbed / max(float(np.linalg.norm(absorbed)), 1e-6)
    return _INK_NAMES[int((_INK_DIRECTIONS @ direction).argmax())]


def _pixels(image: Image.Image | NDArray[np.uint8]) -> Floats:
    if isinstance(image, Image.Image):
        image = np.asarray(image.convert("RGB"))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise DataError(
            f"gold check: a picture is uint8 [H, W, 3], not {image.dtype} {image.shape}"
        )
    return image.astype(np.float32)


_SOME_SHAPES = Scene(objects=(SceneObject("circle", "red", (1, 1)),))
_BILINEAR = Image.Resampling.BILINEAR
_INK_NAMES = tuple(INKS)
_INK_DIRECTIONS = 255 - np.asarray([INKS[name] for name in _INK_NAMES], np.float32)
_INK_DIRECTIONS /= np.linalg.norm(_INK_DIRECTIONS, axis=1, keepdims=True)
