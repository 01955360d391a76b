"""Conversations with their answers, as rows of token ids: what the language model is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atelier.policies.janus.conversation import IMAGE_SLOT, Context, Conversation

DRAWN_SLOT = IMAGE_SLOT - 1  # the place of an image token that is to be predicted
NO_IMAGE = -1

Task = Literal["draw", "judge", "ask", "describe", "redraw", "edit"]
DRAWING: tuple[Task, ...] = ("draw", "redraw", "edit")  # what is predicted is an image
SEEING: tuple[Task, ...] = ("judge", "ask", "describe")  # what is predicted is text


@dataclass(frozen=True)
class Row:
    """One conversation.

    Attributes:
        tokens: text ids, IMAGE_SLOT for an image that is given, DRAWN_SLOT for one to be drawn.
        places: positions of the tokens; a token that is hidden from all others is left out, and its
            position with it.
        prompt: what an unconditional row does not know, [start, end).
        target: what is predicted, [start, end).
        given, drawn: numbers of the images, NO_IMAGE without one.
    """

    tokens: list[int]
    places: list[int]
    prompt: tuple[int, int]
    target: tuple[int, int]
    given: int = NO_IMAGE
    drawn: int = NO_IMAGE


@dataclass(frozen=True)
class Table:
    """Rows padded on the right: tokens, places [N, L]; prompt, target [N, 2]; given, drawn [N]."""

    tokens: NDArray[np.int16]
    places: NDArray[np.int16]
    prompt: NDArray[np.int16]
    target: NDArray[np.int16]
    given: NDArray[np.int32]
    drawn: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.tokens)

    def parts(self) -> dict[str, NDArray[Any]]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


class Writer:
    """Writes the rows of each task. Numbers of images are the caller's."""

    def __init__(self, tokenizer: Any, image_tokens: int) -> None:
        self._tokenizer = Remembering(tokenizer)
        self.conversation = Conversation(self._tokenizer, image_tokens)
        self.pad = self.conversation.pad
        self._image = [DRAWN_SLOT] * image_tokens

    def draw(self, prompt: str, drawn: int) -> Row:
        return self._row(self.conversation.drawing(prompt), self._image, drawn=drawn)

    def judge(self, prompt: str, answer: str, given: int) -> Row:
        return self._row(self.conversation.judging(prompt), self._said(answer), given)

    def ask(self, question: str, answer: str, given: int) -> Row:
        return self._row(self.conversation.asking(question), self._said(answer), given)

    def edit(self, instruction: str, given: int, drawn: int) -> Row:
        return self._row(self.conversation.editing(instruction), self._image, given, drawn)

    def redraw(self, prompt: str, answer: str, given: int, drawn: int, hide_end: bool) -> Row:
        """`hide_end`: whether the answer's EOS is hidden, as published training has it (4.2)."""
        context = self.conversation.redrawing(prompt, self.words(answer))
        row = self._row(context, self._image, given, drawn)
        return _without(row, row.tokens.index(self.conversation.eos)) if hide_end else row

    def words(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _said(self, answer: str) -> list[int]:
        return [*self.words(answer), self.conversation.eos]

    def _row(
        self, context: Context, target: list[int], given: int = NO_IMAGE, drawn: int = NO_IMAGE
    ) -> Row:
        tokens = [*context.tokens, *target]
        end = len(tokens)
        places = list(range(end))
        return Row(tokens, places, context.prompt, (end - len(target), end), given, drawn)


class Remembering:
    """A tokenizer that remembers texts: most of a conversation's are the same in all."""

    def __init__(self, tokenizer: Any) -> None:
        self._wrapped = tokenizer
        self._known: dict[str, Any] = {}

    def __call__(self, text: str, add_special_tokens: bool = False) -> Any:
        if text not in self._known:
            self._known[text] = self._wrapped(text, add_special_tokens=add_special_tokens)
        return self._known[text]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def stack(rows: Sequence[Row], pad: int) -> Table:
    """Rows as a table, as wide as the longest of them."""
    length = max(len(row.tokens) for row in rows)
    tokens = np.full((len(rows), length), pad, np.int16)
    places = np.tile(np.arange(length, dtype=np.int16), (len(rows), 1))
    for index, row in enumerate(rows):
        tokens[index, : len(row.tokens)] = row.tokens
        places[index, : len(row.tokens)] = row.places
    return Table(
        tokens,
        places,
        np.asarray([row.prompt for row in rows], np.int16),
        np.asarray([row.target for row in rows], np.int16),
        np.asarray([row.given for row in rows], np.int32),
        np.asarray([row.drawn for row in rows], np.int32),
    )


def widen(table: Table, length: int, pad: int) -> Table:
    """The same with `length` columns."""
    more = length - table.tokens.shape[1]
    parts = table.parts()
    parts["tokens"] = np.pad(table.tokens, ((0, 0), (0, more)), constant_values=pad)
    parts["places"] = np.pad(table.places, ((0, 0), (0, more)))
    return Table(**parts)


def join(tables: Sequence[Table], pad: int) -> Table:
    """One table after the other."""
    length = max(table.tokens.shape[1] for table in tables)
    wide = [widen(table, length, pad).parts() for table in tables]
    return Table(**{name: np.concatenate([parts[name] for parts in wide]) for name in wide[0]})


def _without(row: Row, index: int) -> Row:
    """The row without one token of its context that nobody looks at."""
    tokens, places = row.tokens, row.places
    start, end = row.target
    return Row(
        [*tokens[:index], *tokens[index + 1 :]],
        [*places[:index], *places[index + 1 :]],
        row.prompt,
        (start - 1, end - 1),
        row.given,
        row.drawn,
    )
