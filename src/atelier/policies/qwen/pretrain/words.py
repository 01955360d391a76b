"""What is said in the world of the embedded pipelines: riddles, readings of them, completions.

A riddle names a colour or a shape by a clue. The writer is taught by a reader that knows some clues
well and others by half: its completions are right about every other time, and reinforcement
learning has something to gain. Text alone; nothing here knows of tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from atelier.data.riddles import COLOUR_CLUES, SHAPE_CLUES, riddle
from atelier.data.scenes import COLOURS, SHAPES

# The same words, said differently; what they ask for is the middle.
FRAMES = ("{}", "{}.", "a picture of {}", "paint {}", "here is {}")
EDIT_FRAMES = ("{}", "{}.", "please {}", "now {}", "{}, and keep the rest")
NOTHING_SAID = (" ", "paint a picture", "a picture of some things", "please read the words")
NOTHING_ASKED = (" ", "change the picture", "please edit the picture", "please read the words")

_NAMES: dict[str, tuple[str, tuple[str, ...]]] = {}  # clue: what it stands for, all of that sort
for _sort, _clues in ((COLOURS, COLOUR_CLUES), (SHAPES, SHAPE_CLUES)):
    for _name, _known_for in _clues.items():
        _NAMES |= dict.fromkeys(_known_for, (_name, _sort))


def _any(options: Sequence[str]) -> str:
    return "|".join(map(re.escape, options))


_CLUES = [
    [one for clues in table.values() for one in clues] for table in (COLOUR_CLUES, SHAPE_CLUES)
]
_riddle = lru_cache(maxsize=200_000)(riddle)
_RIDDLE = re.compile(
    rf"\bshape(?P<plural>s?) (?P<shape>{_any(_CLUES[1])})"
    rf"(?: the colour of (?P<its>{_any(_CLUES[0])}))?"
    rf"|\bthe colour of (?P<colour>{_any(_CLUES[0])})"
)
_NAME = re.compile(
    rf"\b(?:(?P<colour>{'|'.join(COLOURS)})|(?P<shape>{'|'.join(SHAPES)})(?P<plural>e?s)?)\b"
)


def solved(text: str, read: Callable[[str], str]) -> str:
    """A riddle in plain words; what is no riddle stays as it is.

    Args:
        read: the name that a clue stands for.
    """

    def plain(found: re.Match[str]) -> str:
        if found["shape"] is None:
            return read(found["colour"])
        shape = _number(read(found["shape"]), bool(found["plural"]))
        return f"{read(found['its'])} {shape}" if found["its"] else shape

    return _RIDDLE.sub(plain, text)


def meaning(clue: str) -> str:
    """What a clue stands for."""
    return _NAMES[clue][0]


class Reader:
    """Reads clues, and takes some for others, drawn anew each time.

    Args:
        known: how often it reads the first, the second and the third clue of each name right. A
            first or second one it takes for any other name, a third one always for the same.
    """

    def __init__(self, known: tuple[float, ...], rng: random.Random) -> None:
        self._known, self._rng = known, rng

    def __call__(self, clue: str) -> str:
        name, sort = _NAMES[clue]
        place = (COLOUR_CLUES.get(name) or SHAPE_CLUES[name]).index(clue)
        if self._rng.random() < self._known[place]:
            return name
        if place + 1 == len(self._known):
            return sort[(sort.index(name) + 1) % len(sort)]
        return self._rng.choice([one for one in sort if one != name])


def nearly(text: str, rng: random.Random, chance: float = 0.3) -> str:
    """Plain words with each name exchanged by another one with this chance."""

    def exchanged(found: re.Match[str]) -> str:
        if rng.random() >= chance:
            return found[0]
        if found["colour"]:
            return rng.choice([one for one in COLOURS if one != found["colour"]])
        other = rng.choice([one for one in SHAPES if one != found["shape"]])
        return _number(other, bool(found["plural"]))

    return _NAME.sub(exchanged, text)


def careless(text: str, rng: random.Random) -> str:
    """Plain words of which one is left out."""
    words = text.split()
    words.pop(rng.randrange(len(words)))
    return " ".join(words) or text


def framed(text: str, frames: Sequence[str], rng: random.Random) -> str:
    """The words as they are, four times in five, or in one of the frames."""
    return text if rng.random() < 0.8 else rng.choice(frames).format(text)


def bare(text: str, frames: Sequence[str]) -> str:
    """What is inside a frame."""
    for frame in sorted(frames, key=len, reverse=True):
        before, after = frame.split("{}")
        if text.startswith(before) and text.endswith(after) and frame != "{}":
            return text[len(before) : len(text) - len(after)]
    return text


def asked(text: str, rng: random.Random) -> str:
    """How a user says it: as a riddle, nine times in ten."""
    return _riddle(text) if rng.random() < 0.9 else text


def _number(shape: str, plural: bool) -> str:
    if not plural:
        return shape
    return f"{shape}es" if shape.endswith("s") else f"{shape}s"
