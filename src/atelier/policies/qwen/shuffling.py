"""Completions of other prompts: a baseline that shows whether what is written matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from atelier.data.prompts import Prompt
from atelier.errors import ConfigError

_Written = TypeVar("_Written")


def of_other_prompts(written: Sequence[_Written], prompts: Sequence[Prompt]) -> list[_Written]:
    """For each row what was written to the next prompt among them, for the last to the first.

    Raises:
        ConfigError: there is one prompt only.
    """
    rows: dict[tuple[int, int], list[int]] = {}
    for row, one in enumerate(prompts):
        rows.setdefault((one.dataset_id, one.prompt_id), []).append(row)
    if len(rows) < 2:
        raise ConfigError(
            "evaluation.completions: shuffled exchanges what is written to the prompts of a batch, "
            "and a batch has one prompt only; choose another evaluation.micro_batch_size"
        )
    groups = list(rows.values())
    found = list(written)
    for own, other in zip(groups, [*groups[1:], groups[0]], strict=True):
        for place, row in enumerate(own):
            found[row] = written[other[place % len(other)]]
    return found
