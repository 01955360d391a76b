"""Suite `unigenbench`: how many of the test points of their prompts do images show?

A judge gives a verdict of each test point, and where the prompt is one of a scene so does the exact
checker. The headline is the share of all points (micro), as published; `macro` is the mean of the
ten primary dimensions' shares. Every dimension is a part of the headline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.point_rows import points_of
from atelier.data.prompts import Prompt
from atelier.data.readers.objects import Checked
from atelier.data.readers.problems import Problems
from atelier.data.scene_points import gold_verdicts
from atelier.evaluation.gold_columns import gold_columns, require_gold, scene_of
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judgement_files import as_judgements
from atelier.evaluation.judging import ASKED_AT_ONCE, SuiteJudge
from atelier.evaluation.point_questions import Judged, ask
from atelier.evaluation.point_tables import as_json, summarized_table
from atelier.evaluation.requests import MOST_IMAGES, ImageRequest
from atelier.evaluation.suite import Images, Rows, Scored, Suite, row
from atelier.evaluation.units import POINT_JUDGES, is_judged, point_metric
from atelier.legible import legible_value
from atelier.rewards.images import pil_images
from atelier.unigenbench.tallies import MACRO, OVERALL
from atelier.unigenbench.taxonomy import UnknownPoint, dimension_of

HEADLINES = {who: point_metric(who, OVERALL) for who in POINT_JUDGES}
METRICS = (
    *(point_metric(who, name) for who in POINT_JUDGES for name in (OVERALL, MACRO)),
    *("judged", "gold"),
    *NAMES,
)
POINT_KEYS = ("point", "description", *POINT_JUDGES, "remark")


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge | None,
) -> Scored:
    """Score every image.

    Rows have `points`, a list of {point, description, judge, gold, remark}: verdicts in [0, 1],
    None where there are none, and what the judge said of the point. judge_unigenbench and
    gold_unigenbench are the image's own shares; `judged` is 1 where the judge gave verdicts and 0
    where not (`missing` says why, `said` what it said), `gold` is as in other suites.

    Raises:
        DataError: no judge is named, and a prompt has no scene; or test points are unknown.
        Stopped: the judge answers nothing.
    """
    rows = [
        row(request, image) | _unjudged(image, request.prompt)
        for request, image in zip(requests, images, strict=True)
    ]
    if judge is None:
        require_gold(rows, "has no scene", "evaluation.unigenbench.judge")
        return _scored(rows, "gold", "gold")
    _ask(images, requests, config, judge, rows)
    return _scored(rows, "judge", f"judge {judge.model}, {config.unigenbench.ask}")


def files(rows: Rows, summary: Mapping[str, Any]) -> Mapping[str, str]:
    """The tables of whoever scored, and the verdicts as DeepGen-RL's tools write them."""
    there = [who for who in POINT_JUDGES if any(is_judged(one, who) for one in rows)]
    tables = {who: as_json(summarized_table(rows, who, summary["metrics"])) for who in there}
    return {
        "unigenbench.json": json.dumps(tables, indent=1, ensure_ascii=False) + "\n",
        "unigenbench_scores.csv": as_judgements(rows, there[0]) if there else "",
    }


SUITE = Suite("unigenbench", score, "pooled prompt", files)


def require_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that a table can be made of rows that a file holds.

    Raises:
        DataError: an image has no prompt or number, no test points, an unknown one, or a verdict
            that is none in [0, 1] and not missing; rows are named.
    """
    problems = Problems(path)
    for number, one in enumerate(rows, start=1):
        own = Checked(path, problems, f"row {number}", dict(one))
        own.identity("prompt_id")
        own.whole("number", 0, MOST_IMAGES)
        points = one.get("points")
        if not isinstance(points, list) or not points:
            own.wrong(f"key 'points': a list of test points, not {legible_value(points)}")
            continue
        for place, point in enumerate(points):
            _require_point(own, place, point)
    problems.raise_if_any()


def _require_point(own: Checked, place: int, value: Any) -> None:
    if (point := own.part(f"points[{place}]", value, POINT_KEYS)) is None:
        return
    try:
        dimension_of(point.text("point"))
    except UnknownPoint as error:
        point.wrong(f"key 'point': {error}")
    for who in POINT_JUDGES:
        if who not in value:
            point.wrong(f"no key {who!r}")
        elif value[who] is not None:
            point.number(who, 0, 1)


def _unjudged(image: NDArray[np.uint8], prompt: Prompt) -> dict[str, Any]:
    """The columns of an image's points, as far as no judge is asked."""
    points, scene = points_of(prompt), scene_of(prompt)
    gold: list[float | None] = [None] * len(points)
    if scene is not None:
        gold = [float(shown) for shown in gold_verdicts(image, scene)]
    found = [
        {"point": one.name, "description": one.description, "judge": None, "gold": shown}
        for one, shown in zip(points, gold, strict=True)
    ]
    columns = {"points": found, "judged": None, "missing": None} | gold_columns(image, prompt)
    return columns | _shares(found) | _in_words(found, "gold")


def _ask(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge,
    rows: Rows,
) -> None:
    """Add what the judge says to the rows."""
    for start in range(0, len(rows), ASKED_AT_ONCE):
        few = slice(start, start + ASKED_AT_ONCE)
        prompts = [one.prompt for one in requests[few]]
        asked = [
            (image, prompt.text, points_of(prompt))
            for image, prompt in zip(pil_images(images[few]), prompts, strict=True)
        ]
        found = ask(config.unigenbench, judge.judge, asked)
        for own, judged in zip(rows[few], found, strict=True):
            _add(own, judged)
    judge.require_some([own["missing"] for own in rows])


def _add(own: dict[str, Any], judged: Judged) -> None:
    """Put a judge's verdicts into the row of their image."""
    points = own["points"]
    scores: Sequence[float | None] = judged.scores or [None] * len(points)
    for place, (point, verdict) in enumerate(zip(points, scores, strict=True)):
        point["judge"] = verdict
        point["remark"] = judged.remarks[place] if judged.remarks else None
    own |= {"judged": float(judged.scores is not None), "missing": judged.missing}
    own |= _shares(points) | _in_words(points, "judge")
    if judged.missing is not None:
        own["said"] = list(judged.said)


def _shares(points: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The share of an image's own points that are shown."""
    found: dict[str, float | None] = {}
    for who, column in HEADLINES.items():
        verdicts = [one[who] for one in points]
        found[column] = None if None in verdicts else sum(verdicts) / len(verdicts)
    return found


def _in_words(points: Sequence[Mapping[str, Any]], who: str) -> dict[str, str]:
    """What is not shown; nothing without verdicts."""
    if any(one[who] is None for one in points):
        return {}
    lacking = [f"{one['point']} ({one['description']})" for one in points if one[who] < 0.5]
    return {"text": f"not shown: {', '.join(lacking)}" if lacking else "all shown"}


def _scored(rows: Rows, who: str, reader: str) -> Scored:
    return Scored(rows, reader, HEADLINES[who], HEADLINES[who], METRICS)
