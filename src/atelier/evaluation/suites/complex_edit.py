"""Suite `complex_edit`: marks of edited images, by how many edits the instruction asks for.

A judge's marks, as the reward complex_edit asks for them, divided by 10: instruction following,
identity preservation and perceptual quality; `overall` is the mean of the three.
Of edits of scenes there are following and preserving of the exact checker as well. Who copies the
source has an overall of some 0.6, so `edited` stands beside it, the geometric mean of following and
preserving.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atelier.complex_edit.marks import HIGHEST, Marks
from atelier.config.sections.edit_levels import MOST
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.readers.complex_edit import ORIGINS
from atelier.data.readers.objects import Checked
from atelier.data.readers.problems import Problems
from atelier.evaluation.gold_columns import require_gold
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.evaluation.statistics import Interval, mean_interval
from atelier.evaluation.suite import Images, Rows, Scored, Suite, row
from atelier.evaluation.suites.editing import edit_batch, edited, gold_columns
from atelier.evaluation.units import part, units_of
from atelier.legible import legible_value
from atelier.rewards.base import Missing
from atelier.rewards.scorers.complex_edit import ComplexEditJudge

SCORES: dict[str, tuple[str, ...]] = {
    "judge": ("overall", "edited", "following", "preserving", "quality"),
    "gold": ("edited", "following", "preserving"),
}
METRICS = (*(f"{who}_{one}" for who, scores in SCORES.items() for one in scores), "gold", *NAMES)
BATCH = 16


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge | None,
) -> Scored:
    """Score every edited image.

    Rows have the SCORES, each in [0, 1] (None where there are none, `missing` says why), `gold`,
    which is gold_edited, `level`, and `origin` where the data say it.

    Raises:
        DataError: no judge is named, and an edit is none of a scene.
        Stopped: the judge answers nothing.
    """
    rows = [
        row(request, image) | _columns(Missing("")) | gold_columns(image, request.prompt)
        for request, image in zip(requests, images, strict=True)
    ]
    if judge is not None:
        _ask(images, requests, config, judge, rows)
        return _scored(rows, "judge_overall", f"judge {judge.model}")
    require_gold(rows, "is no edit of a scene", "evaluation.complex_edit.judge")
    return _scored(rows, "gold_edited", "gold")


def files(rows: Rows, summary: Mapping[str, Any]) -> Mapping[str, str]:
    """The table of levels and origins, of whoever scored."""
    found = {
        who: [asdict(line) for line in table(rows, who, summary["bootstrap_samples"])]
        for who, scores in SCORES.items()
        if any(one[f"{who}_{scores[0]}"] is not None for one in rows)
    }
    return {"complex_edit.json": json.dumps(found, indent=1) + "\n"}


SUITE = Suite("complex_edit", score, files=files)


@dataclass(frozen=True)
class Line:
    """The means of some images, in [0, 1].

    Attributes:
        origin, level: of the images; None: of all.
        means: by score; None where no image has one.
    """

    origin: str | None
    level: int | None
    images: int
    missing: int
    means: Mapping[str, Interval | None]


def table(rows: Sequence[Mapping[str, Any]], who: str, samples: int = 10_000) -> list[Line]:
    """Of each origin a line a level and one of all levels; then those of all origins, where there
    are several. The images of a prompt are one value, their mean.

    Args:
        who: a key of SCORES.
        samples: resamples of the intervals.
    """
    origins = [one for one in ORIGINS if any(own.get("origin") == one for own in rows)]
    named = [own for own in rows if own.get("origin") in origins]
    several = len(origins) != 1 or len(named) < len(rows)
    found = []
    for origin in [*origins, *([None] if several else [])]:
        of_origin = [own for own in rows if origin is None or own.get("origin") == origin]
        for level in sorted({own["level"] for own in of_origin}):
            here = [own for own in of_origin if own["level"] == level]
            found.append(_line(here, who, samples, origin, level))
        found.append(_line(of_origin, who, samples, origin, None))
    return found


def require_rows(path: Path, rows: Sequence[Mapping[str, Any]], who: str) -> None:
    """Check that a table can be made of rows that a file holds.

    Raises:
        DataError: a prompt has no number, a level is none, an origin unknown, or a score none in
            [0, 1] and not missing; rows are named.
    """
    problems = Problems(path)
    for number, one in enumerate(rows, start=1):
        own = Checked(path, problems, f"row {number}", dict(one))
        own.identity("prompt_id")
        own.whole("level", 1, MOST)
        if (origin := one.get("origin")) not in (None, *ORIGINS):
            own.wrong(f"key 'origin': {' or '.join(ORIGINS)}, not {legible_value(origin)}")
        for column in (f"{who}_{score}" for score in SCORES[who]):
            if column not in one:
                own.wrong(f"no key {column!r}")
            elif one[column] is not None:
                own.number(column, 0, 1)
    problems.raise_if_any()


def _line(
    rows: Sequence[Mapping[str, Any]],
    who: str,
    samples: int,
    origin: str | None,
    level: int | None,
) -> Line:
    columns = [f"{who}_{one}" for one in SCORES[who]]
    units = units_of(rows, "prompt", columns)
    means: dict[str, Interval | None] = {}
    for name, column in zip(SCORES[who], columns, strict=True):
        values = [one.values[column] for one in units if column in one.values]
        means[name] = mean_interval(values, samples) if values else None
    return Line(origin, level, len(rows), sum(one[columns[0]] is None for one in rows), means)


def _columns(marks: Marks | Missing) -> dict[str, float | None]:
    """What a judge's marks are in [0, 1]."""
    if isinstance(marks, Missing):
        return {f"judge_{name}": None for name in SCORES["judge"]}
    following, preserving = marks.following / HIGHEST, marks.preservation / HIGHEST
    return {
        "judge_overall": marks.overall / HIGHEST,
        "judge_edited": edited(following, preserving),
        "judge_following": following,
        "judge_preserving": preserving,
        "judge_quality": marks.quality / HIGHEST,
    }


def _ask(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge,
    rows: Rows,
) -> None:
    """Add what the judge says to the rows, as the reward complex_edit asks it."""
    asking = ComplexEditJudge(config.complex_edit, judge.judge)
    for start in range(0, len(rows), BATCH):
        few = slice(start, start + BATCH)
        found = asking.ask(edit_batch(images[few], requests[few]))
        for own, (marks, _) in zip(rows[few], found, strict=True):
            own |= _columns(marks)
            own["missing"] = marks.reason if isinstance(marks, Missing) else None
    judge.require_some([own["missing"] for own in rows])


def _scored(rows: Rows, headline: str, reader: str) -> Scored:
    """Also by level, and by origin where rows have one."""
    for own in rows:
        own[part(headline, f"C{own['level']}")] = own[headline]
        if "origin" in own:
            own[part(headline, own["origin"])] = own[headline]
    return Scored(rows, reader, headline, headline, METRICS)
