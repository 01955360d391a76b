"""Prompts that name colours and shapes by what they are known for.

"a red circle above a green cross" becomes "a shape without a corner the colour of blood above a
shape of two crossing bars the colour of grass". Who paints from such words has to know the world;
who reads them may write the plain words down for the painter first. Source: the Qwen vision GRPO
guide.
"""

import re

from atelier.data.keys import key
from atelier.data.scenes import COLOURS, SHAPES

COLOUR_CLUES: dict[str, tuple[str, ...]] = {
    "black": ("coal", "a raven", "the night"),
    "red": ("blood", "a ripe tomato", "a ruby"),
    "blue": ("the sky", "the sea", "a sapphire"),
    "green": ("grass", "a frog", "an emerald"),
    "purple": ("a plum", "lavender", "an amethyst"),
    "brown": ("chocolate", "a bear", "tree bark"),
}
SHAPE_CLUES: dict[str, tuple[str, ...]] = {
    "circle": ("without a corner", "like a wheel", "as round as the moon"),
    "square": ("with four equal sides", "like a chessboard", "with four corners"),
    "triangle": ("with three sides", "like a pyramid", "with three corners"),
    "cross": ("of two crossing bars", "like a plus sign", "as on a first-aid box"),
}

_PLURALS = {f"{shape}es" if shape.endswith("s") else f"{shape}s": shape for shape in SHAPES}
_NOUN = re.compile(
    rf"\b(?P<colour>{'|'.join(COLOURS)})(?: (?P<shape>{'|'.join((*_PLURALS, *SHAPES))}))?\b"
    rf"|\b(?P<alone>{'|'.join((*_PLURALS, *SHAPES))})\b"
)


def riddle(text: str) -> str:
    """The prompt without a colour's or a shape's name; the same text gives the same riddle.

    What is quoted, the letters of a word, stays as it is. A thing that is named twice is given two
    different clues where the choice falls so.
    """
    parts = text.split('"')
    return '"'.join(
        _hidden(part, text) if place % 2 == 0 else part for place, part in enumerate(parts)
    )


def _hidden(part: str, text: str) -> str:
    def clue(found: re.Match[str]) -> str:
        def one_of(choices: tuple[str, ...]) -> str:
            return choices[key("riddle", text, found.start(), choices[0]) % len(choices)]

        colour, named = found["colour"], found["shape"] or found["alone"]
        words = []
        if named:
            shape = _PLURALS.get(named, named)
            words += ["shapes" if named in _PLURALS else "shape", one_of(SHAPE_CLUES[shape])]
        if colour:
            words += ["the colour of", one_of(COLOUR_CLUES[colour])]
        return " ".join(words)

    return _NOUN.sub(clue, part)
