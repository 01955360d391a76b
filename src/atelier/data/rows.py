"""Rows of a prompt table: a pair of prompts that differ in one thing, or a prompt by itself.

The two of a pair are neighbours whose metadata names the same "pair", a number that no other pair
of the table has; "caption" is 1 or 2, and "partner" the other's text.
"""

from collections.abc import Iterator, Sequence

from atelier.data.prompts import Prompt
from atelier.errors import DataError

Row = tuple[int, ...]


def rows_of(prompts: Sequence[Prompt]) -> list[Row]:
    """The places of every row's prompts, in the order of the table: (i, i + 1) or (i,).

    Raises:
        DataError: a pair whose two prompts are not neighbours, or that are not two.
    """
    rows = list(_neighbours(prompts))
    seen: set[int] = set()
    for row in rows:
        pair = pair_of(prompts[row[0]])
        if pair is None:
            continue
        if len(row) != 2 or pair in seen:
            raise DataError(
                f"prompt {prompts[row[0]].prompt_id}: pair {pair} must be two prompts, one behind "
                "the other; run `atelier stage prepare` to make the tables anew"
            )
        seen.add(pair)
    return rows


def pair_of(prompt: Prompt) -> int | None:
    """The number of the pair it belongs to; None for a prompt by itself."""
    pair = prompt.metadata.get("pair")
    return None if pair is None else int(pair)


def whole_pairs(prompts: Sequence[Prompt]) -> list[tuple[Prompt, Prompt]]:
    """The pairs of which both are there: a table that was cut may end with half of one."""
    found = [row for row in _neighbours(prompts) if len(row) == 2]
    return [(prompts[first], prompts[second]) for first, second in found]


def _neighbours(prompts: Sequence[Prompt]) -> Iterator[Row]:
    index = 0
    while index < len(prompts):
        pair = pair_of(prompts[index])
        is_pair = (
            pair is not None and index + 1 < len(prompts) and pair_of(prompts[index + 1]) == pair
        )
        yield (index, index + 1) if is_pair else (index,)
        index += 2 if is_pair else 1
