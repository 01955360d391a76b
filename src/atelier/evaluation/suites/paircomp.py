"""Suite `paircomp`: are two captions that differ in one thing told apart in the pictures?

Every picture has a score in [0, 1] against its own caption: P(yes) of a judge, and where the pair
is one of scenes also 1 if the exact checker finds every fact, else 0. Of a pair's scores there are
the arithmetic mean s_a and the geometric mean s_g, averaged within a category and then over the
categories, unweighted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.errors import DataError
from atelier.evaluation.gold_columns import gold_columns, require_gold
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judge_columns import UNASKED, judge_columns
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.evaluation.score_files import as_score_file
from atelier.evaluation.suite import Images, Rows, Scored, Suite, row
from atelier.legible import alike

METRICS = ("gold", *NAMES)


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge | None,
) -> Scored:
    """Score every picture against its own caption.

    Rows have judge (None where it gave no answer, `missing` says why; always without a judge),
    gold, strict and gold_facts (None without a scene).

    Raises:
        DataError: no judge is named, and a prompt has no scene; or the means of two categories
            would be one metric.
        Stopped: the judge answers nothing.
    """
    _require_own_means(requests)
    said = [UNASKED] * len(requests)
    if judge is not None:
        said = judge_columns(images, requests, config.paircomp.question, judge)
    rows = [
        row(request, image) | gold_columns(image, request.prompt) | words
        for request, image, words in zip(requests, images, said, strict=True)
    ]
    if judge is not None:
        reader = f"judge {judge.model}"
        return Scored(rows, reader, "judge_arithmetic", "judge", METRICS)
    require_gold(rows, "has no scene", "evaluation.paircomp.judge")
    return Scored(rows, "gold", "gold_arithmetic", "strict", METRICS)


def files(rows: Rows, _summary: Mapping[str, Any]) -> Mapping[str, str]:
    """The scores as PairComp's own tools write them."""
    if max(one["number"] for one in rows) != 1:
        return {}  # PairComp has two images a caption
    column = "judge" if any(one["judge"] is not None for one in rows) else "strict"
    return {"paircomp.json": as_score_file(rows, column)}


def _require_own_means(requests: Sequence[ImageRequest]) -> None:
    categories = [one.prompt.metadata.get("category") for one in requests]
    for one, other in alike(name for name in categories if name):
        raise DataError(
            f"the categories {one!r} and {other!r} of held-out pairs would have one mean, since "
            "they differ in case, blanks or punctuation alone; write both alike, or name them apart"
        )


SUITE = Suite("paircomp", score, "pair", files)
