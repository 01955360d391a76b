"""Everything that is learnt from: images of many cases and the conversations about them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from atelier.data.keys import key
from atelier.data.questions import ANSWER, DESCRIBE, KINDS, Question, ask
from atelier.data.scenes import Scene, Split, prompt
from atelier.data.verdicts import held, verdict
from atelier.policies.janus.pretrain.cases import IMAGES, Case, make_case, make_images
from atelier.policies.janus.pretrain.sequences import Row, Table, Task, Writer, join, stack
from atelier.policies.janus.tiny import build_tokenizer

CHUNK = 500
QUESTIONS = 3  # yes/no questions about each scene
REDRAWN_AFTER_YES = 0.15

Rows = dict[Task, list[Row]]
Tables = dict[Task, Table]


@dataclass(frozen=True)
class World:
    """`images` uint8 [M, 64, 64, 3], and a table of conversations for each task."""

    images: NDArray[np.uint8]
    tables: Tables


def make_world(executor: Executor, cases: int, split: Split, seed: int, image_tokens: int) -> World:
    """Cases 0, 1, ... of a split; the same for any number of workers."""
    jobs = [
        executor.submit(_chunk, start, min(CHUNK, cases - start), split, seed, image_tokens)
        for start in range(0, cases, CHUNK)
    ]
    parts = [job.result() for job in jobs]
    pad = writer(image_tokens).pad
    tasks: Iterable[Task] = parts[0].tables
    tables = {task: join([part.tables[task] for part in parts], pad) for task in tasks}
    return World(np.concatenate([part.images for part in parts]), tables)


@cache
def writer(image_tokens: int) -> Writer:
    return Writer(build_tokenizer(), image_tokens)


def case_rows(case: Case, number: int, writing: Writer, rng: random.Random) -> Rows:
    """Conversations about a case, by task.

    Args:
        number: of the first of its images.
    """
    scene, other, edited = number, number + 1, number + 2
    asked, other_asked = prompt(case.scene), prompt(case.other)
    wrong = verdict(case.scene, held(case.scene, case.other))
    rows: Rows = {"draw": [writing.draw(asked, scene), writing.draw(other_asked, other)]}
    rows["judge"] = [
        writing.judge(asked, verdict(case.scene, held(case.scene, case.scene)), scene),
        writing.judge(asked, wrong, other),
        writing.judge(other_asked, verdict(case.other, held(case.other, case.other)), other),
        writing.judge(other_asked, verdict(case.other, held(case.other, case.scene)), scene),
    ]
    rows["ask"] = [
        writing.ask(question.text, question.answer.capitalize(), scene)
        for question in questions(case.scene, rng, QUESTIONS)
    ]
    rows["describe"] = [
        writing.ask(DESCRIBE, asked, scene),
        writing.ask(DESCRIBE, other_asked, other),
    ]
    hide = rng.random() < 0.5
    if rng.random() < REDRAWN_AFTER_YES:
        rows["redraw"] = [writing.redraw(asked, "Yes", scene, scene, hide)]
    else:
        rows["redraw"] = [writing.redraw(asked, wrong, other, scene, hide)]
    rows["edit"] = [writing.edit(case.edit.instruction, scene, edited)]
    return rows


def questions(scene: Scene, rng: random.Random, count: int) -> list[Question]:
    """Yes/no questions about a scene, kind and answer drawn evenly."""
    found: list[Question] = []
    while len(found) < count:
        question = ask(scene, rng.choice(KINDS), rng.random() < 0.5, rng)
        if question is not None:
            assert question.text.endswith(ANSWER)
            found.append(question)
    return found


def _chunk(start: int, count: int, split: Split, seed: int, image_tokens: int) -> World:
    writing = writer(image_tokens)
    cases = [make_case(split, seed, index) for index in range(start, start + count)]
    rows: Rows = {}
    for index, case in enumerate(cases, start):
        rng = random.Random(key("tiny-janus rows", split, seed, index))
        for task, own in case_rows(case, IMAGES * index, writing, rng).items():
            rows.setdefault(task, []).extend(own)
    tables: Tables = {task: stack(own, writing.pad) for task, own in rows.items()}
    return World(make_images(cases, split, seed, start), tables)
