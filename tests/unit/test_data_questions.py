"""Questions about scenes: their answers are true, and nothing but looking gives them away."""

import random
import re
from collections import Counter

import pytest

from atelier.data.questions import (
    ANSWER,
    KINDS,
    NO,
    OPPOSITES,
    YES,
    Question,
    all_questions,
    ask,
    caption_question,
)
from atelier.data.scenes import NUMBERS, Scene, SceneObject, Word, prompt, sample_scene

SCENES = [
    sample_scene(random.Random(number), kind)
    for kind in ("word", "shapes", "mixed")
    for number in range(300)
]


def truth(scene: Scene, question: Question) -> bool:
    """The answer, found from the question's words and the scene alone."""
    text = question.text.removesuffix(f" {ANSWER}").removesuffix("?")
    if found := re.fullmatch(r'Is the word "([A-Z]+)"', text):
        return scene.word is not None and scene.word.text == found[1]
    if found := re.fullmatch(r"Is the word (above|below) the .*", text):
        return scene.word_relation == found[1]
    if found := re.fullmatch(r"Is the word ([a-z]+)", text):
        return scene.word is not None and scene.word.colour == found[1]
    if found := re.fullmatch(r"Is there a (.+)", text):
        return found[1] in scene.groups
    if found := re.fullmatch(r"(?:Is|Are) there (\w+) (.+)", text):
        number = NUMBERS.index(found[1]) + 1
        noun = found[2] if number == 1 else re.sub(r"(?<=cross)es$|s$", "", found[2])
        return scene.groups.get(noun) == number
    relations = "|".join(OPPOSITES)
    if found := re.fullmatch(rf"Is the (.+) ({relations}) the (.+)", text):
        first, second = scene.objects
        if (found[1], found[3]) == (first.noun, second.noun):
            return found[2] == scene.relation
        return (found[3], found[1]) == (first.noun, second.noun) and (
            found[2] == OPPOSITES[scene.relation or ""]
        )
    assert text.startswith("Does this image show "), text
    return text.removeprefix("Does this image show ") == prompt(scene)


def test_answers_are_true() -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for number, scene in enumerate(SCENES):
        for question in all_questions(scene, random.Random(number)):
            if question.kind in KINDS:
                assert question.answer == (YES if truth(scene, question) else NO), (scene, question)
                seen[question.kind, question.answer] += 1
    assert {kind for kind, _ in seen} == set(KINDS)
    assert all(seen[kind, YES] == seen[kind, NO] for kind in KINDS)


def test_open_questions_ask_for_the_word_and_for_all() -> None:
    scene = Scene((SceneObject("circle", "red", (0, 1)),), Word("KEM", "blue"))
    answers = {one.kind: one.answer for one in all_questions(scene, random.Random(0))}
    assert answers["read"] == "KEM"
    assert answers["describe"] == 'the word "KEM" in blue below one red circle'


def test_a_scene_is_not_asked_about_what_it_does_not_have() -> None:
    word = Scene(word=Word("KEM", "red"))
    rng = random.Random(0)
    assert all(ask(word, kind, True, rng) is None for kind in ("shape", "count", "position"))
    crowd = Scene(tuple(SceneObject("circle", "red", (0, column)) for column in range(3)))
    assert ask(crowd, "position", True, rng) is None
    assert ask(crowd, "word", False, rng) is None


def test_the_other_answer_differs_in_one_fact() -> None:
    """Three letters: a misspelt word shares two letters, or all of them in another order."""
    for number in range(200):
        scene = Scene(word=Word("KEM", "red"))
        asked = ask(scene, "word", False, random.Random(number))
        assert asked is not None
        (other,) = re.findall('"([A-Z]+)"', asked.text)
        same = sum(a == b for a, b in zip(other, "KEM", strict=True))
        assert same == 2 or sorted(other) == sorted("KEM"), other
        assert other != "KEM"


def test_questions_are_a_function_of_the_seed() -> None:
    scene = SCENES[700]
    once, again = (list(all_questions(scene, random.Random(5))) for _ in range(2))
    assert once == again
    assert once != list(all_questions(scene, random.Random(6)))


@pytest.mark.parametrize("caption", ["a red circle above a blue square", "two red crosses"])
def test_a_caption_is_quoted_as_it_is(caption: str) -> None:
    assert caption in caption_question(caption)
    assert caption_question(caption).endswith(ANSWER)
