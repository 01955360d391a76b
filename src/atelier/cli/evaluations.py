"""The evaluation that a verb of a benchmark is asked about."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from atelier.evaluation.results import Evaluation


@dataclass(frozen=True)
class Asked:
    """An evaluation by one suite, and whose scores of it are meant: judge or gold."""

    folder: Path
    evaluation: Evaluation
    who: str


def asked_evaluation(name: str, suite: str, by: str | None, known: Container[str]) -> Asked:
    """The evaluation in a folder, or of a run.

    Args:
        by: whose scores; None: those of its headline.
        known: who may be meant.

    Raises:
        click.UsageError: no name.
        DataError: there is none, it is by another suite, or nobody's.
    """
    from atelier.errors import DataError
    from atelier.evaluation.files import read_evaluation
    from atelier.legible import legible, legible_value
    from atelier.stages.find_run import find_evaluation

    if not name:
        raise click.UsageError("FOLDER is empty; name an evaluation or a run")
    folder = find_evaluation(name)
    evaluation = read_evaluation(folder)
    found = evaluation.summary.get("suite")
    if found != suite:
        raise DataError(f"{folder}: an evaluation by the suite {legible(str(found))}, not {suite}")
    headline = evaluation.summary.get("headline", "")
    who = by or headline.partition("_")[0]
    if who not in known:
        raise DataError(
            f"{folder}: no headline of this suite: {legible_value(headline)}; give --by"
        )
    return Asked(folder, evaluation, who)
