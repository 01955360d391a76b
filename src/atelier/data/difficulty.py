"""How easy the cells of a prompt table are, by what an earlier evaluation measured.

Cells are ranked from easy to hard by their mean score and split into bins, the first ones one
longer where they do not divide. Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from atelier.data.curriculum import BIN, CELL, KEY
from atelier.data.prompts import Prompt, PromptSet
from atelier.data.readers.objects import short
from atelier.data.readers.problems import Problems, json_file, json_lines
from atelier.errors import DataError
from atelier.legible import alike

Cell = tuple[str, ...]
USUAL = ("judge_mmmg", "gold_mmmg")
SHOWN = 5


class Curriculum(Protocol):
    """The section `data.curriculum` (atelier.config.sections.curriculum.CurriculumConfig)."""

    @property
    def scores(self) -> str | None: ...
    @property
    def score(self) -> str | None: ...
    @property
    def cells(self) -> list[str]: ...
    @property
    def levels(self) -> int: ...


def with_curriculum(
    prompts: PromptSet, config: Curriculum
) -> tuple[PromptSet, list[dict[str, Any]] | None]:
    """The table whose prompts say their bin and cell in their metadata, and the bins: each
    {"prompts": how many, "cells": {name: score}}, the easiest first. As it was, and None, without
    `scores`.

    Raises:
        DataError: the file is missing or malformed; a prompt has no such metadata; a cell of the
            table was not measured; there are fewer cells than levels, or two of them would be one
            metric.
    """
    if config.scores is None:
        return prompts, None
    measured = read_scores(Path(config.scores), config.cells, config.score)
    cells = [_cell(one, config.cells) for one in prompts]
    if lacking := sorted({*cells} - measured.keys()):
        raise DataError(
            f"data.curriculum.scores: {config.scores} has no score of {_named(lacking)}, which the "
            "training prompts have; evaluate more prompts (evaluation.prompts, so that each cell "
            "has some), name the file of a run that did, or fewer keys in data.curriculum.cells"
        )
    for one, other in alike(" / ".join(cell) for cell in sorted({*cells})):
        raise DataError(
            f"data.curriculum.cells: the cells {one!r} and {other!r} of the training prompts would "
            "be one metric, since they differ in case, blanks or punctuation alone; write both "
            "alike, or name them apart"
        )
    ranked = sorted({*cells}, key=lambda cell: (-measured[cell], cell))
    if len(ranked) < config.levels:
        raise DataError(
            f"data.curriculum.levels {config.levels}: the training prompts are of {len(ranked)} "
            "cells (data.curriculum.cells); have no more levels than cells"
        )
    bins = split(ranked, config.levels)
    bin_of = {cell: number for number, own in enumerate(bins, start=1) for cell in own}
    told = [
        {
            "prompts": sum(bin_of[cell] == number for cell in cells),
            "cells": {" ".join(cell): measured[cell] for cell in own},
        }
        for number, own in enumerate(bins, start=1)
    ]
    placed = zip(prompts, cells, strict=True)
    return PromptSet(tuple(_placed(one, own, bin_of) for one, own in placed), prompts.name), told


def split(ranked: Sequence[Cell], count: int) -> list[list[Cell]]:
    """Cut into `count` bins as equal as can be; what is left over goes to the first ones."""
    each, more = divmod(len(ranked), count)
    ends = [each * number + min(number, more) for number in range(count + 1)]
    return [list(ranked[start:end]) for start, end in pairwise(ends)]


def read_scores(path: Path, keys: Sequence[str], score: str | None) -> dict[Cell, float]:
    """The mean score of every cell that has one, by the values of `keys`.

    Args:
        path: an evaluation's scores.jsonl; or, under any other name, JSON as its mmmg.json:
            {score: {"cells": {value of the first key: {value of the second: {"mean": 0.5}}}}},
            where a number may stand in the place of {"mean": ...}.
        score: which; None: the first of USUAL that has a value, since an evaluation without a judge
            writes the judge's as null.

    Raises:
        DataError: missing or malformed, a score outside [0, 1], or no such score, all with their
            place.
    """
    problems = Problems(path)
    read = _of_rows if path.suffix == ".jsonl" else _of_table
    scores: dict[Cell, list[float]] = {}
    for where, cell, value in read(path, problems, keys, score):
        if value is None:  # could not be had
            continue
        if isinstance(value, bool) or not (isinstance(value, int | float) and 0 <= value <= 1):
            problems.add(where, f"a number from 0 to 1 expected, not {short(value)}")
            continue
        scores.setdefault(cell, []).append(float(value))
    problems.raise_if_any()
    return {cell: sum(own) / len(own) for cell, own in scores.items()}


Found = Iterator[tuple[str, Cell, Any]]  # place, cell, score


def _of_rows(path: Path, problems: Problems, keys: Sequence[str], score: str | None) -> Found:
    rows = []
    for where, row in json_lines(path, problems):
        if isinstance(row, dict):
            rows.append((where, row))
        else:
            problems.add(where, f"an object expected, not {short(row)}")
    if not rows:
        return
    column = _chosen(path, [row for _, row in rows], score)
    for where, row in rows:
        lacking = [name for name in (*keys, column) if name not in row]
        if lacking:
            has = ", ".join(sorted(row))
            problems.add(where, f"no {', '.join(lacking)} (data.curriculum); it has {has}")
            continue
        yield f"{where}: {column}", tuple(str(row[name]) for name in keys), row[column]


def _of_table(path: Path, problems: Problems, keys: Sequence[str], score: str | None) -> Found:
    tables = json_file(path)
    if not isinstance(tables, dict):
        raise DataError(f"{path}: an object of scores expected, as in an evaluation's mmmg.json")
    column = _chosen(path, [tables], score)
    table = tables.get(column)
    cells = table.get("cells") if isinstance(table, dict) else None
    if not isinstance(cells, dict):
        raise DataError(f"{path}: {column}: an object with 'cells' expected, as in mmmg.json")
    yield from _leaves(problems, cells, (), keys)


def _leaves(problems: Problems, value: Mapping[str, Any], cell: Cell, keys: Sequence[str]) -> Found:
    for name, own in value.items():
        here = (*cell, name)
        where = "cells: " + ": ".join(here)
        if len(here) < len(keys):
            if isinstance(own, dict) and "mean" not in own:
                yield from _leaves(problems, own, here, keys)
            else:
                problems.add(where, f"not nested by {', '.join(keys)} (data.curriculum.cells)")
        elif isinstance(own, dict):
            if "mean" not in own:
                problems.add(where, f"nested deeper than {', '.join(keys)} (data.curriculum.cells)")
            yield where, here, own.get("mean")
        else:
            yield where, here, own


def _chosen(path: Path, there: Sequence[Mapping[str, Any]], score: str | None) -> str:
    """Which score: the one that is named, or the first usual one that some row has."""
    wanted = USUAL if score is None else (score,)
    for name in wanted:
        if any(one.get(name) is not None for one in there):
            return name
    known = ", ".join(sorted({name for one in there for name in one})) or "nothing"
    raise DataError(
        f"{path}: no {' or '.join(wanted)} to rank cells by (data.curriculum.score), or none that "
        f"is not null; it has {known}"
    )


def _cell(prompt: Prompt, keys: Sequence[str]) -> Cell:
    lacking = [name for name in keys if name not in prompt.metadata]
    if lacking:
        known = ", ".join(sorted(prompt.metadata)) or "none"
        raise DataError(
            f"data.curriculum.cells: prompt {prompt.prompt_id} has no {', '.join(lacking)} in its "
            f"metadata; it has {known}"
        )
    return tuple(str(prompt.metadata[name]) for name in keys)


def _placed(prompt: Prompt, cell: Cell, bin_of: Mapping[Cell, int]) -> Prompt:
    own = {BIN: bin_of[cell], CELL: " ".join(cell)}
    return replace(prompt, metadata={**prompt.metadata, KEY: own})


def _named(cells: Sequence[Cell]) -> str:
    words = [" ".join(cell) for cell in cells[:SHOWN]]
    more = f" and {len(cells) - SHOWN} more" if len(cells) > SHOWN else ""
    return f"{', '.join(words)}{more}"
