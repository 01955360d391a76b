"""Suite `mmmg`: how much of its knowledge graph does an image show, and can it be read?

An image's score is readability times knowledge fidelity, by a judge's verdicts, and
where the graph is one of scenes also by those of the exact checker. Fidelity is by Dice; `official`
has the leaderboard's in its place. Scores are averaged within a tier and then over the tiers,
unweighted, as the leaderboard's Avg.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL.Image import Image

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.readers.objects import Checked
from atelier.data.readers.problems import Problems
from atelier.evaluation.gold_columns import require_gold
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import MOST_IMAGES, ImageRequest
from atelier.evaluation.suite import Images, Rows, Scored, Suite, row, score_batch
from atelier.evaluation.units import part
from atelier.legible import legible, legible_value
from atelier.mmmg.scores import Fidelity, readability, sample_score
from atelier.mmmg.tables import Table, table
from atelier.rewards.base import Missing
from atelier.rewards.images import pil_images
from atelier.rewards.scorers.knowledge import Regioned, Seen
from atelier.rewards.scorers.mmmg import KnowledgeJudge
from atelier.rewards.scorers.scene_graph import gold_fidelity

WHO = ("judge", "gold")
SCORES = ("mmmg", "official", "fidelity", "node_jaccard", "edge_jaccard")
METRICS = (
    *(f"{who}_{score}" for who in WHO for score in SCORES),
    *("readability", "regions", "gold"),
    *NAMES,
)
BATCH = 16


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge | None,
) -> Scored:
    """Score every image.

    Rows have the SCORES of judge and gold (None where there are none, `missing` says why),
    readability, regions, `gold`, which is gold_fidelity, tier, discipline and key.

    Raises:
        DataError: no judge is named, and a graph is none of scenes.
        ConfigError: regions can never be counted as it is configured.
        Stopped: the judge answers nothing.
    """
    regioned = Regioned(config.mmmg.regions, "evaluation.mmmg.regions")
    rows = [
        row(request, image) | _without_judge(request, picture, regioned)
        for request, image, picture in zip(requests, images, pil_images(images), strict=True)
    ]
    counter = regioned.counter.version
    if judge is not None:
        _ask(images, requests, config, judge, rows)
        return _scored(rows, "judge_mmmg", f"judge {judge.model}, {counter}")
    require_gold(rows, "has no scene graph", "evaluation.mmmg.judge")
    return _scored(rows, "gold_mmmg", f"gold, {counter}")


def files(rows: Rows, _summary: Mapping[str, Any]) -> Mapping[str, str]:
    """The tables of tiers and disciplines, of every score that there is."""
    columns = [f"{who}_{name}" for who in WHO for name in ("mmmg", "official", "fidelity")]
    there = [name for name in columns if any(one[name] is not None for one in rows)]
    found = {name: as_json(table_of(rows, name)) for name in there}
    return {"mmmg.json": json.dumps(found, indent=1) + "\n"}


SUITE = Suite("mmmg", score, "tiered prompt", files)


def table_of(rows: Sequence[Mapping[str, Any]], column: str) -> Table:
    """The table of a column of an evaluation's rows, every image a sample."""
    return table((one["tier"], one["discipline"], one[column]) for one in rows)


def require_rows(path: Path, rows: Sequence[Mapping[str, Any]], column: str) -> None:
    """Check that a table of a column can be made of rows that a file holds.

    Raises:
        DataError: a tier or discipline is no printable text, a score is none in [0, 1] and not
            missing, or there is no such column; rows are named.
    """
    problems = Problems(path)
    for number, one in enumerate(rows, start=1):
        own = Checked(path, problems, f"row {number}", dict(one))
        for key in ("tier", "discipline"):
            if (text := own.text(key)) and text != legible(text):
                own.wrong(f"key {key!r}: a short printable name, not {legible_value(text)}")
        own.whole("number", 0, MOST_IMAGES)
        if column not in one:
            own.wrong(f"no key {column!r}")
        elif one[column] is not None:
            own.number(column, 0, 1)
    problems.raise_if_any()


def as_json(found: Table) -> dict[str, Any]:
    """A table as it is kept: means in [0, 1], leaderboard times 100."""
    cells: dict[str, dict[str, Any]] = {}
    for (tier, discipline), mean in found.cells.items():
        cells.setdefault(tier, {})[discipline] = asdict(mean)
    return {
        "leaderboard": found.leaderboard,
        "macro": found.macro,
        "micro": asdict(found.micro),
        "tiers": {tier: asdict(mean) for tier, mean in found.tiers.items()},
        "disciplines": {one: asdict(mean) for one, mean in found.disciplines.items()},
        "cells": cells,
    }


def _without_judge(request: ImageRequest, picture: Image, regioned: Regioned) -> dict[str, Any]:
    """The columns of regions, and what the exact checker says."""
    regions = regioned.of(picture)
    faithful, seen = gold_fidelity(picture, request.prompt.metadata)
    count, reason = (
        (None, regions.reason) if isinstance(regions, Missing) else (regions.count, None)
    )
    readable = readability(count)
    columns = _columns("judge", None, readable) | _columns("gold", faithful, readable)
    found = {"regions": count, "readability": readable, "missing": reason, **columns}
    return found | {"gold": columns["gold_fidelity"]} | _said(seen)


def _columns(
    who: str, faithful: Fidelity | Missing | None, readable: float | None
) -> dict[str, Any]:
    if not isinstance(faithful, Fidelity):
        return {f"{who}_{name}": None for name in SCORES}
    values = (
        sample_score(readable, faithful.dice),
        sample_score(readable, faithful.official),
        faithful.dice,
        faithful.node_jaccard,
        faithful.edge_jaccard,
    )
    return {f"{who}_{name}": value for name, value in zip(SCORES, values, strict=True)}


def _said(seen: Seen) -> dict[str, Any]:
    """What is not shown, in words; nothing without verdicts."""
    lacking = seen.get("not_shown")
    if lacking is None:
        return {}
    return {"text": f"not shown: {', '.join(lacking)}" if lacking else "all shown"}


def _ask(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge,
    rows: Rows,
) -> None:
    """Add what the judge says to the rows, as the reward mmmg asks it."""
    asking = KnowledgeJudge(config.mmmg, judge.judge)
    reasons: list[str | None] = []
    for start in range(0, len(rows), BATCH):
        few = slice(start, start + BATCH)
        found = asking.ask(score_batch(images[few], requests[few]))
        for own, (faithful, seen) in zip(rows[few], found, strict=True):
            own |= _columns("judge", faithful, own["readability"]) | _said(seen)
            reasons.append(faithful.reason if isinstance(faithful, Missing) else None)
            own["missing"] = own["missing"] or reasons[-1]
    judge.require_some(reasons)


def _scored(rows: Rows, headline: str, reader: str) -> Scored:
    """Also by tier."""
    for own in rows:
        own[part(headline, own["tier"])] = own[headline]
    return Scored(rows, reader, headline, headline, METRICS)
