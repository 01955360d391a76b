"""Epochs of a table with pairs: every row once, in an order of the epoch's own.

A row is a pair, or two single prompts that an epoch couples. Pure functions of the table, the step
and the seed.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from atelier.data.keys import key
from atelier.data.rows import Row
from atelier.errors import PlanError


@dataclass(frozen=True)
class Drawn:
    """The rows of a step, two prompts each, and the epoch's others, disjoint from them."""

    rows: list[Row]
    others: list[Row]


def draw_rows(table: Sequence[Row], step: int, rows_per_step: int, seed: int) -> Drawn:
    """What a step (counted from 1) holds.

    The last step of an epoch is filled up with rows of the epoch's beginning. An odd single prompt
    is coupled with one that is not in its step: a single one, where there is another.

    Args:
        table: as `rows.rows_of`; at least twice `rows_per_step` prompts.
    """
    rows = (len(table) + sum(len(row) == 2 for row in table) + 1) // 2
    epoch, position = divmod(step - 1, -(-rows // rows_per_step))
    order = _order(table, random.Random(key("paired epoch", seed, epoch)))
    start = position * rows_per_step
    chosen, rest = order[start : start + rows_per_step], order[:start]
    rest += order[start + rows_per_step :]
    whole: list[Row] = [row for row in rest if len(row) == 2]
    missing = rows_per_step - len(chosen)
    chosen, others = chosen + whole[:missing], whole[missing:]
    if any(len(row) == 1 for row in chosen):
        pairs = {row for row in table if len(row) == 2}
        spare = next((row for row in others if row not in pairs), others[0])
        chosen = [row if len(row) == 2 else (*row, spare[0]) for row in chosen]
        others.remove(spare)
    return Drawn(chosen, others)


def draw_others(
    table: Sequence[Row], step: int, rows_per_step: int, seed: int, round: int
) -> list[Row]:
    """Rows for round 1, 2, ... of a step: none that the step or an earlier round has.

    Raises:
        PlanError: there are not enough for so many rounds.
    """
    others = draw_rows(table, step, rows_per_step, seed).others
    random.Random(key("other rows", seed, step)).shuffle(others)
    end = round * rows_per_step
    if end > len(others):
        raise PlanError(
            f"train.resample_rounds {round}: a step may need {rows_per_step + end} rows of two "
            f"prompts, and there are {rows_per_step + len(others)}: lower it or "
            "train.prompts_per_step, or have more prompts"
        )
    return others[end - rows_per_step : end]


def _order(table: Sequence[Row], rng: random.Random) -> list[Row]:
    """Pairs and coupled single prompts, shuffled together; an odd one is a row of one."""
    singles = [row[0] for row in table if len(row) == 1]
    rng.shuffle(singles)
    coupled = [tuple(singles[at : at + 2]) for at in range(0, len(singles), 2)]
    order = [*(row for row in table if len(row) == 2), *coupled]
    rng.shuffle(order)
    return order
