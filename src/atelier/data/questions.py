"""Questions about a scene, with the answers it gives: what a judge is trained and tested on.

A yes/no question has a counterpart with the other answer that differs from it in one fact, so that
answering without looking is right half of the time. Open questions ask for the word, or for all
that is there.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from atelier.data.scenes import (
    ALPHABET,
    COLOURS,
    GRID,
    MAX_COUNT,
    SHAPES,
    Scene,
    counted,
    plural,
    prompt,
)
from atelier.errors import DataError

Kind = Literal["colour", "shape", "count", "position", "word", "caption"]
KINDS: tuple[Kind, ...] = ("colour", "shape", "count", "position", "word", "caption")
ANSWER = "Answer yes or no."
YES, NO = "yes", "no"
READ = "Which word is in this image? Answer the word alone."
DESCRIBE = "What does this image show?"
OPPOSITES = {"above": "below", "below": "above", "left of": "right of", "right of": "left of"}


@dataclass(frozen=True)
class Question:
    """`text` asks, and `answer` is all that is to be said: yes, no, a word or a caption."""

    kind: Kind | Literal["read", "describe"]
    text: str
    answer: str


def caption_question(caption: str) -> str:
    """Whether an image shows what a prompt asks for."""
    return f"Does this image show {caption}? {ANSWER}"


def how_many(noun: str, number: int) -> str:
    """Whether there are so many of a thing, without `ANSWER`."""
    return f"{'Is' if number == 1 else 'Are'} there {counted(noun, number)}?"


def ask(scene: Scene, kind: Kind, answer: bool, rng: random.Random) -> Question | None:
    """A yes/no question, None where the scene has nothing of the kind; a pure function of `rng`.

    Args:
        answer: whether yes is the right answer.
    """
    text = _ASKED[kind](scene, answer, rng)
    return None if text is None else Question(kind, f"{text} {ANSWER}", YES if answer else NO)


def all_questions(scene: Scene, rng: random.Random) -> Iterator[Question]:
    """For every kind the scene has, a question to answer yes and one to answer no; and the open."""
    yield Question("describe", DESCRIBE, prompt(scene))
    if scene.word is not None:
        yield Question("read", READ, scene.word.text)
    for kind in KINDS:
        for answer in (True, False):
            question = ask(scene, kind, answer, rng)
            if question is not None:
                yield question


def altered(scene: Scene, rng: random.Random) -> Scene:
    """A scene that differs in one fact and asks for another picture; a pure function of `rng`.

    Raises:
        DataError: nothing about the scene can be changed.
    """
    for _ in range(1000):
        try:
            other = rng.choice((_other_word, _other_noun, _other_number, _other_place))(scene, rng)
        except DataError:  # no scene: the change broke its limits
            continue
        if other is not None and _is_another(scene, other):
            return other
    raise DataError(f"{scene}: nothing about it can be changed")


def _colour(scene: Scene, answer: bool, rng: random.Random) -> str | None:
    if scene.word is not None and (not scene.objects or rng.random() < 0.5):
        ink = scene.word.colour
        return f"Is the word {ink if answer else _other(COLOURS, {ink}, rng)}?"
    item = rng.choice(scene.objects)
    used = {one.colour for one in scene.objects if one.shape == item.shape}
    colour = item.colour if answer else _other(COLOURS, used, rng)
    return f"Is there a {colour} {item.shape}?"


def _shape(scene: Scene, answer: bool, rng: random.Random) -> str | None:
    if not scene.objects:
        return None
    item = rng.choice(scene.objects)
    used = {one.shape for one in scene.objects if one.colour == item.colour}
    shape = item.shape if answer else _other(SHAPES, used, rng)
    return f"Is there a {item.colour} {shape}?"


def _count(scene: Scene, answer: bool, rng: random.Random) -> str | None:
    if not scene.objects:
        return None
    noun, number = rng.choice(list(scene.groups.items()))
    if not answer:
        number = rng.choice([n for n in range(1, MAX_COUNT + 1) if n != number])
    return how_many(noun, number)


def _position(scene: Scene, answer: bool, rng: random.Random) -> str | None:
    if scene.relation is not None:
        first, second = (item.noun for item in scene.objects)
        relation = scene.relation
        if rng.random() < 0.5:
            first, second, relation = second, first, OPPOSITES[relation]
        if not answer:
            relation = rng.choice([one for one in OPPOSITES if one != relation])
        return f"Is the {first} {relation} the {second}?"
    if scene.word_relation is None:
        return None
    relation = scene.word_relation if answer else OPPOSITES[scene.word_relation]
    ((noun, number),) = scene.groups.items()
    return f"Is the word {relation} the {plural(noun, number)}?"


def _word(scene: Scene, answer: bool, rng: random.Random) -> str | None:
    if scene.word is None:
        return None
    text = scene.word.text if answer else _misspelt(scene.word.text, rng)
    return f'Is the word "{text}"?'


def _caption(scene: Scene, answer: bool, rng: random.Random) -> str | None:
    shown = prompt(scene) if answer else prompt(altered(scene, rng))
    return caption_question(shown).removesuffix(f" {ANSWER}")


_Asked = Callable[[Scene, bool, random.Random], str | None]
_ASKED: dict[Kind, _Asked] = {
    "colour": _colour,
    "shape": _shape,
    "count": _count,
    "position": _position,
    "word": _word,
    "caption": _caption,
}


def _is_another(scene: Scene, other: Scene) -> bool:
    """Whether no picture of the scene is also one of the other's prompt."""
    same_facts = scene.groups == other.groups and scene.word == other.word
    places = (other.relation, other.word_relation)
    return not same_facts or (any(places) and places != (scene.relation, scene.word_relation))


def _other_word(scene: Scene, rng: random.Random) -> Scene | None:
    if scene.word is None:
        return None
    if rng.random() < 0.25:
        ink = _other(COLOURS, {scene.word.colour}, rng)
        return replace(scene, word=replace(scene.word, colour=ink))
    return replace(scene, word=replace(scene.word, text=_misspelt(scene.word.text, rng)))


def _other_noun(scene: Scene, rng: random.Random) -> Scene | None:
    if not scene.objects:
        return None
    item = rng.choice(scene.objects)
    if rng.random() < 0.5:
        other = replace(item, colour=_other(COLOURS, {item.colour}, rng))
    else:
        other = replace(item, shape=_other(SHAPES, {item.shape}, rng))
    objects = tuple(
        replace(other, cell=one.cell) if one.noun == item.noun else one for one in scene.objects
    )
    return replace(scene, objects=objects)


def _other_number(scene: Scene, rng: random.Random) -> Scene | None:
    if not scene.objects:
        return None
    item = rng.choice(scene.objects)
    if rng.random() < 0.5:
        return replace(scene, objects=tuple(one for one in scene.objects if one != item))
    rows = {one.cell[0] for one in scene.objects} if scene.word else range(GRID)
    taken = {one.cell for one in scene.objects}
    free = [(row, column) for row in rows for column in range(GRID) if (row, column) not in taken]
    if not free:
        return None
    last = max(index for index, one in enumerate(scene.objects) if one.noun == item.noun)
    more = replace(item, cell=rng.choice(free))
    return replace(scene, objects=(*scene.objects[: last + 1], more, *scene.objects[last + 1 :]))


def _other_place(scene: Scene, _rng: random.Random) -> Scene | None:
    """The same things the other way round: both objects swapped, or the row and the word."""
    if scene.relation is not None:
        first, second = scene.objects
        swapped = (replace(first, cell=second.cell), replace(second, cell=first.cell))
        return replace(scene, objects=swapped)
    if scene.word_relation is None:
        return None
    moved = (replace(one, cell=(GRID - 1 - one.cell[0], one.cell[1])) for one in scene.objects)
    return replace(scene, objects=tuple(moved))


def _misspelt(text: str, rng: random.Random) -> str:
    """The word with one letter changed, or (a third) two letters swapped."""
    place = rng.randrange(len(text))
    if rng.random() < 1 / 3:
        next_place = (place + 1) % len(text)
        letters = list(text)
        letters[place], letters[next_place] = letters[next_place], letters[place]
        if "".join(letters) != text:
            return "".join(letters)
    return text[:place] + _other(tuple(ALPHABET), {text[place]}, rng) + text[place + 1 :]


def _other(values: tuple[str, ...], used: set[str], rng: random.Random) -> str:
    return rng.choice([value for value in values if value not in used])
