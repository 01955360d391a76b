"""The scene world: what a picture holds, the prompt that asks for it, the facts it is checked on.

A scene is coloured shapes in the cells of a 3x3 grid, a word, or both. Everything else derives from
it: prompt, image (`render`), gold check (`gold`), and later minimal pairs, edits, knowledge graphs
and test points, which are all differences or views of scenes.
"""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atelier.data.keys import uniform
from atelier.errors import DataError
from atelier.legible import legible, legible_value

Kind = Literal["word", "shapes", "mixed"]
Split = Literal["train", "heldout"]
Fact = str | int | bool

COLOURS = ("black", "red", "blue", "green", "purple", "brown")
SHAPES = ("circle", "square", "triangle", "cross")
NUMBERS = ("one", "two", "three", "four")
# Without D, I and Q: on blurred, noisy renders PP-OCR misses them at 10, 12 and 71 % (Q and D read
# as O, I as 1 or T), all others at 8 % or less; they would be noise in the reward.
ALPHABET = "ABCEFGHJKLMNOPRSTUVWXYZ"
GRID = 3
MAX_COUNT = len(NUMBERS)
MAX_GROUPS = 3
HELDOUT_SHARE = 0.15

# Closed, because each word is a row of the frozen text encoder: the edit verbs are here so that
# edit instructions need no new embedding later.
VOCABULARY: tuple[str, ...] = (
    *("the", "a", "word", "in", "and", "of", "above", "below", "left", "right"),
    *NUMBERS,
    *COLOURS,
    *SHAPES,
    *("circles", "squares", "triangles", "crosses"),
    *("make", "change", "replace", "add", "remove", "move", "with", "to", "no", "not"),
)
MAX_PROMPT_TOKENS = 14

_TOKEN = re.compile(r'[a-z]+|[A-Z]|"|\S')
_RESERVED = frozenset(word.upper() for word in VOCABULARY)


@dataclass(frozen=True)
class Word:
    """2 to 5 upper-case letters in one ink."""

    text: str
    colour: str

    def __post_init__(self) -> None:
        if not 2 <= len(self.text) <= 5 or not set(self.text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
            raise DataError(f"word {self.text!r}: a word is 2 to 5 letters A-Z")
        if self.text in _RESERVED:
            raise DataError(f"word {self.text!r}: it is a word of the prompt vocabulary")
        _require("colour", self.colour, COLOURS)


@dataclass(frozen=True)
class SceneObject:
    """One shape; `cell` is (row, column) of the 3x3 grid, (0, 0) at the top left."""

    shape: str
    colour: str
    cell: tuple[int, int]

    def __post_init__(self) -> None:
        _require("shape", self.shape, SHAPES)
        _require("colour", self.colour, COLOURS)
        if len(self.cell) != 2 or not all(0 <= index < GRID for index in self.cell):
            raise DataError(f"cell {self.cell!r}: a cell is (row, column), each 0 to {GRID - 1}")

    @property
    def noun(self) -> str:
        """Colour and shape, as the prompt names them: "red circle"."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """Objects in the order in which the prompt names them, and a word.

    With a word, all objects stand in one row, the top or the bottom one, and the word takes the
    rest of the picture. The limits keep every prompt within `MAX_PROMPT_TOKENS`.

    Raises:
        DataError: empty, two objects in one cell, too many of a kind, a word too long.
    """

    objects: tuple[SceneObject, ...] = ()
    word: Word | None = None

    def __post_init__(self) -> None:
        if not self.objects and self.word is None:
            raise DataError("scene: it holds neither an object nor a word")
        if len({item.cell for item in self.objects}) < len(self.objects):
            raise DataError("scene: two objects share a cell")
        groups = self.groups
        if len(groups) > MAX_GROUPS or any(count > MAX_COUNT for count in groups.values()):
            raise DataError(
                f"scene: at most {MAX_GROUPS} kinds of objects and {MAX_COUNT} of a kind"
            )
        if self.word is not None and self.objects:
            rows = {item.cell[0] for item in self.objects}
            if len(groups) > 1 or rows not in ({0}, {GRID - 1}) or len(self.word.text) > 4:
                raise DataError(
                    "scene: beside a word of at most 4 letters, objects are of one kind and stand "
                    "in the top or the bottom row"
                )

    @property
    def kind(self) -> Kind:
        if self.word is None:
            return "shapes"
        return "mixed" if self.objects else "word"

    @property
    def groups(self) -> dict[str, int]:
        """Count by noun ("red circle" -> 2), in the order in which the objects name them."""
        return dict(Counter(item.noun for item in self.objects))

    @property
    def relation(self) -> str | None:
        """How object 1 stands to object 2, where a scene is two different objects in one line.

        One of "above", "below", "left of", "right of"; None elsewhere.
        """
        if self.word is not None or len(self.objects) != 2 or len(self.groups) != 2:
            return None
        (row, column), (other_row, other_column) = (item.cell for item in self.objects)
        if column == other_column:
            return "above" if row < other_row else "below"
        if row == other_row:
            return "left of" if column < other_column else "right of"
        return None

    @property
    def word_relation(self) -> str | None:
        """Where the word stands to the objects: "above" or "below"; None without both."""
        if self.word is None or not self.objects:
            return None
        return "below" if self.objects[0].cell[0] == 0 else "above"


def relation_of(cell: tuple[int, int], other: tuple[int, int]) -> str | None:
    """How a thing in `cell` stands to one in `other`: by the longer of the two distances.

    One of "above", "below", "left of", "right of"; None on a diagonal and in the same cell.
    """
    down, across = other[0] - cell[0], other[1] - cell[1]
    if abs(down) == abs(across):
        return None
    if abs(down) > abs(across):
        return "above" if down > 0 else "below"
    return "left of" if across > 0 else "right of"


def prompt(scene: Scene) -> str:
    """The text that asks for the scene, at most `MAX_PROMPT_TOKENS` tokens.

    `the word "KEM" in red`, `two red circles and one blue square`,
    `a red circle above a blue square`, `the word "KEM" in red above two blue circles`.
    """
    if scene.relation is not None:
        first, second = scene.objects
        return f"a {first.noun} {scene.relation} a {second.noun}"
    shapes = " and ".join(counted(noun, count) for noun, count in scene.groups.items())
    if scene.word is None:
        return shapes
    word = f'the word "{scene.word.text}" in {scene.word.colour}'
    return f"{word} {scene.word_relation} {shapes}" if shapes else word


def counted(noun: str, count: int) -> str:
    """A noun with its number: "one red circle", "two red crosses"."""
    return f"{NUMBERS[count - 1]} {plural(noun, count)}"


def plural(noun: str, count: int) -> str:
    """A noun in the form that its number asks for: "red circle", "red crosses"."""
    if count == 1:
        return noun
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"


def facts(scene: Scene) -> dict[str, Fact]:
    """What a picture of the scene must show: fact name to expected value.

    Only what the prompt says: positions that no prompt names are free. Words give one fact a letter
    ("letter 1": "K"), their number ("letters": 3) and "word colour"; objects give one count a noun
    ("red circle": 2), the total ("objects": 3) and the relation ("relation": "above"; "word
    relation" for a word and objects).
    """
    found: dict[str, Fact] = {}
    if scene.word is not None:
        for position, letter in enumerate(scene.word.text, start=1):
            found[f"letter {position}"] = letter
        found["letters"] = len(scene.word.text)
        found["word colour"] = scene.word.colour
    if scene.objects:
        found.update(scene.groups)
        found["objects"] = len(scene.objects)
    if scene.relation is not None:
        found["relation"] = scene.relation
    if scene.word_relation is not None:
        found["word relation"] = scene.word_relation
    return found


def prompt_tokens(text: str) -> list[str]:
    """Split a prompt into its tokens: vocabulary words, single letters, quote marks.

    Raises:
        DataError: a token that the closed vocabulary does not hold.
    """
    tokens = _TOKEN.findall(text)
    for token in tokens:
        if not (token in VOCABULARY or token == '"' or (len(token) == 1 and "A" <= token <= "Z")):
            which = f"prompt {legible(text)!r}: {legible(token)!r}"
            raise DataError(f"{which} is not in the scene vocabulary")
    return tokens


def content_key(scene: Scene) -> str:
    """What decides the split: the word where there is one, else the attribute combination.

    Ink, positions and relations are left out, so their variants stay together.
    """
    if scene.word is not None:
        return f"word {scene.word.text}"
    return _things_key(scene.groups)


def split_of(scene: Scene) -> Split:
    """The one split that the scene's content belongs to; about 15 % is held out."""
    return _split_of_content(content_key(scene))


def split_of_things(counts: Mapping[str, int]) -> Split:
    """The split of all pictures that hold so many of each noun, and no word."""
    return _split_of_content(_things_key(counts))


def sample_scene(
    rng: random.Random, kind: Kind, split: Split | None = None, word_length: int = 3
) -> Scene:
    """Draw a scene of a kind, from one split or (None) from both; a pure function of `rng`.

    Raises:
        DataError: an unknown kind or split, or a word length outside 2..5 (mixed: 2..4).
    """
    _require("scene kind", kind, ("word", "shapes", "mixed"))
    if split is not None:
        _require("split", split, ("train", "heldout"))
    for _ in range(10_000):
        scene = _SAMPLERS[kind](rng, word_length)
        if split is None or split_of(scene) == split:
            return scene
    raise DataError(f"no {kind} scene with words of length {word_length} is in split {split!r}")


def to_dict(scene: Scene) -> dict[str, Any]:
    """JSON-ready form of a scene; `from_dict` reads it back."""
    word = scene.word
    return {
        "objects": objects_to_list(scene.objects),
        "word": None if word is None else {"text": word.text, "colour": word.colour},
    }


def from_dict(data: dict[str, Any]) -> Scene:
    """Read a scene written by `to_dict`.

    Raises:
        DataError: a missing or unknown key, or a value that is no scene.
    """
    try:
        objects = objects_from_list(data["objects"])
        word = None if data["word"] is None else Word(**data["word"])
        return Scene(objects, word)
    except (KeyError, TypeError) as error:
        raise DataError(f"scene {legible_value(data)}: not a scene ({error})") from error


def objects_to_list(objects: Sequence[SceneObject]) -> list[dict[str, Any]]:
    """JSON-ready form of objects; `objects_from_list` reads it back."""
    return [
        {"shape": item.shape, "colour": item.colour, "cell": list(item.cell)} for item in objects
    ]


def objects_from_list(data: list[dict[str, Any]]) -> tuple[SceneObject, ...]:
    """Read objects written by `objects_to_list`.

    Raises:
        DataError: it is no such list, or an object has a value that there is not.
    """
    try:
        return tuple(SceneObject(**{**item, "cell": tuple(item["cell"])}) for item in data)
    except (KeyError, TypeError) as error:
        raise DataError(f"{legible_value(data)}: not a scene's objects ({error})") from error


def _things_key(counts: Mapping[str, int]) -> str:
    return "shapes " + ", ".join(sorted(f"{count} {noun}" for noun, count in counts.items()))


def _split_of_content(content: str) -> Split:
    return "heldout" if uniform("scene split", content) < HELDOUT_SHARE else "train"


def _sample_word(rng: random.Random, length: int) -> Scene:
    while True:
        text = "".join(rng.choice(ALPHABET) for _ in range(length))
        if text not in _RESERVED:
            return Scene(word=Word(text, rng.choice(COLOURS)))


def _sample_shapes(rng: random.Random, _length: int) -> Scene:
    """A third each: one kind, two kinds with free positions, two single objects in a line."""
    form = rng.randrange(3)
    nouns = rng.sample([(shape, colour) for shape in SHAPES for colour in COLOURS], 2)
    if form == 2:
        row, column = rng.randrange(GRID), rng.randrange(GRID)
        near, far = sorted(rng.sample(range(GRID), 2))
        cells = [(near, column), (far, column)] if rng.random() < 0.5 else [(row, near), (row, far)]
        rng.shuffle(cells)
    else:
        nouns = [noun for noun in nouns[: form + 1] for _ in range(rng.randint(1, MAX_COUNT))]
        cells = rng.sample([(r, c) for r in range(GRID) for c in range(GRID)], len(nouns))
    return Scene(
        tuple(SceneObject(*noun, cell=cell) for noun, cell in zip(nouns, cells, strict=True))
    )


def _sample_mixed(rng: random.Random, length: int) -> Scene:
    word = _sample_word(rng, length).word
    row = rng.choice((0, GRID - 1))
    shape, colour = rng.choice(SHAPES), rng.choice(COLOURS)
    columns = sorted(rng.sample(range(GRID), rng.randint(1, GRID)))
    return Scene(tuple(SceneObject(shape, colour, (row, column)) for column in columns), word)


_SAMPLERS = {"word": _sample_word, "shapes": _sample_shapes, "mixed": _sample_mixed}


def _require(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise DataError(f"{what} {legible_value(value)}: one of {', '.join(allowed)}")
