"""Which prompts a step may draw, from easy to hard: pure functions of the table, step and seed.

Every prompt of a table with a curriculum says which bin it is of (difficulty.py). A level draws
evenly from its own bin and all easier ones, in epochs of its own: what was drawn does not depend on
how far a loader had read, and a resume needs no state. Source: the Qwen vision GRPO guide; unlike
there, nothing is taken modulo a length that changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from atelier.data.keys import key
from atelier.data.prompts import Prompt
from atelier.data.rows import rows_of
from atelier.data.samplers import row_indices
from atelier.errors import PlanError
from atelier.legible import metric_word

BIN, CELL = "bin", "cell"
KEY = "curriculum"  # of a prompt's metadata: {"bin": 1 ..., "cell": "PhD Biology"}


def level_of(step: int, steps: int, levels: int) -> int:
    """The level, 1 to `levels`, of a step, 1 to `steps`: each is equally long."""
    return min((step - 1) * levels // steps, levels - 1) + 1


def first_step_of(level: int, steps: int, levels: int) -> int:
    """The first step of a level."""
    return -(-(level - 1) * steps // levels) + 1


def curriculum_indices(
    prompts: Sequence[Prompt],
    step: int,
    steps: int,
    levels: int,
    prompts_per_step: int,
    seed: int,
    round: int = 0,
) -> list[int]:
    """Places of the prompts of a step, as `samplers.row_indices` of those that its level has.

    A pair is of the harder bin of its two.

    Raises:
        PlanError: the level has fewer prompts than a step takes; or as `row_indices`.
        DataError: the two prompts of a pair are not neighbours.
    """
    level = level_of(step, steps, levels)
    rows = [row for row in rows_of(prompts) if max(_bin(prompts[at]) for at in row) <= level]
    places = [place for row in rows for place in row]
    if len(places) < prompts_per_step:
        raise PlanError(
            f"data.curriculum.levels {levels}: level {level} has {len(places)} prompts, and a step "
            f"takes {prompts_per_step} (train.prompts_per_step); have fewer levels, or more prompts"
        )
    own = [prompts[place] for place in places]
    since = step - first_step_of(level, steps, levels) + 1
    drawn = row_indices(own, since, prompts_per_step, key(KEY, seed, level), round)
    return [places[index] for index in drawn]


def mix(drawn: Sequence[Prompt], step: int, steps: int, levels: int) -> dict[str, float]:
    """Metrics of what a step drew: its level, and the share of each bin and of each cell that is
    there."""
    bins = Counter(_bin(one) for one in drawn)
    cells = Counter(metric_word(one.metadata[KEY][CELL]) for one in drawn)
    shares = {f"bin_{number}": bins[number] for number in range(1, levels + 1)}
    shares |= {f"cell/{name}": count for name, count in sorted(cells.items())}
    found = {f"{KEY}/level": float(level_of(step, steps, levels))}
    return found | {f"{KEY}/{name}": count / len(drawn) for name, count in shares.items()}


def _bin(prompt: Prompt) -> int:
    return int(prompt.metadata[KEY][BIN])
