"""Suite `editing`: was the instruction followed, and everything else preserved?

Two scores in [0, 1] an image: following F and preserving P, P(yes) of a judge, asked
as the reward edit_yes_no asks it, and of edits of scenes also those of the exact checker. Who
copies the source has P = 1 and F = 0, who draws another picture the reverse, so the headline is
`edited`, their geometric mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.rewards import EditYesNoConfig
from atelier.config.sections.suites import EditingConfig
from atelier.data.edit_rows import check_row
from atelier.data.ground_truth import source_image
from atelier.data.pictures import square
from atelier.data.prompts import Prompt
from atelier.evaluation.gold_columns import require_gold
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.evaluation.suite import Images, Rows, Scored, Suite, row, score_batch
from atelier.evaluation.units import part
from atelier.rewards.base import Missing, ScoreBatch
from atelier.rewards.scorers.edit_yes_no import EditYesNoScorer

SCORES = ("edited", "following", "preserving")
BATCH = 16
METRICS = (*(f"{who}_{score}" for who in ("judge", "gold") for score in SCORES), "gold", *NAMES)


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge | None,
) -> Scored:
    """Score every edited image.

    Rows have judge_following, judge_preserving and judge_edited (None where the judge gave no
    answer, `missing` says why; always without a judge), the same of gold (None where the edit is
    none of a scene), and `gold`, which is gold_edited.

    Raises:
        DataError: no judge is named, and an edit is none of a scene.
        Stopped: the judge answers nothing.
    """
    rows = [
        row(request, image) | gold_columns(image, request.prompt)
        for request, image in zip(requests, images, strict=True)
    ]
    if judge is not None:
        _ask(images, requests, config.editing, judge, rows)
        return _scored(rows, "judge_edited", f"judge {judge.model}")
    require_gold(rows, "is no edit of a scene", "evaluation.editing.judge")
    return _scored(rows, "gold_edited", "gold")


SUITE = Suite("editing", score)


def edited(following: float, preserving: float) -> float:
    """How well an image was edited, in [0, 1]: 0 where either is."""
    return sqrt(following * preserving)


def gold_columns(image: NDArray[np.uint8], prompt: Prompt) -> dict[str, Any]:
    """What the exact checker says of an edited image; None in every column where the edit is none
    of a scene."""
    found = check_row(image, prompt)
    if found is None:
        return {**_columns("gold", None, None), "gold": None, "missing": None}
    columns = _columns("gold", found.following, found.preserving)
    said = "; ".join(found.wrong) or "all right"
    return {**columns, "gold": columns["gold_edited"], "text": said, "missing": None}


def _columns(who: str, following: float | None, preserving: float | None) -> dict[str, Any]:
    whole = None if following is None or preserving is None else edited(following, preserving)
    values = (whole, following, preserving)
    return {f"{who}_{name}": value for name, value in zip(SCORES, values, strict=True)}


def _ask(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EditingConfig,
    judge: SuiteJudge,
    rows: Rows,
) -> None:
    """Add what the judge says to the rows, as the reward edit_yes_no asks it."""
    section = EditYesNoConfig(**{**dict(config), "judge": judge.name})
    scorer = EditYesNoScorer(section, judge.judge)
    for start in range(0, len(rows), BATCH):
        part = slice(start, start + BATCH)
        scores = scorer.score(edit_batch(images[part], requests[part]))
        for own, value, seen in zip(rows[part], scores.values, scores.details, strict=True):
            own |= _columns("judge", seen.get("following"), seen.get("preserving"))
            own["missing"] = value.reason if isinstance(value, Missing) else None
    judge.require_some([row["missing"] for row in rows])


def edit_batch(images: Images, requests: Sequence[ImageRequest]) -> ScoreBatch:
    """What a judge is shown of edited images: their sources, too."""
    sources = [_source(one.prompt, images.shape[1]) for one in requests]
    return replace(score_batch(images, requests), source_images=sources)


def _source(prompt: Prompt, side: int) -> Image | None:
    """What the policy saw of the source: its middle, as large as what it drew."""
    source = source_image(prompt, side)
    return None if source is None else square(source, side)


def _scored(rows: Rows, headline: str, reader: str) -> Scored:
    """Also by the kind of edit, where rows have one."""
    for own in rows:
        if own.get("category") is not None:
            own[part(headline, own["category"])] = own[headline]
    return Scored(rows, reader, headline, headline, METRICS)
