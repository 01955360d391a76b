"""Files of verdicts, as the tools of UniGenBench write them.

- CSV of DeepGen-RL: index, dup_idx, success, testpoints, scores, raw_output; a line an image. Of
  several data sets, which its tools put into a file each, also dataset_id.
- JSON lines of the same keys.
- CSV of upstream: index, testpoint, result_json ({"score": [...]}) and others; it has no line for
  an image without verdicts.

Lists in CSV are JSON or Python's.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atelier.data.readers.csv_rows import csv_rows
from atelier.data.readers.objects import Checked, short
from atelier.data.readers.problems import NotJson, Problems, json_lines, parse_json
from atelier.errors import DataError
from atelier.unigenbench.lists import read_list
from atelier.unigenbench.taxonomy import UnknownPoint, dimension_of

COLUMNS = ("index", "dup_idx", "success", "testpoints", "scores", "raw_output")
DATASET = "dataset_id"
NEEDED = {"index", "testpoints", "scores"}
UPSTREAM = {"index", "testpoint", "result_json"}
MOST = 10**9  # of an index
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def as_judgements(rows: Sequence[Mapping[str, Any]], who: str) -> str:
    """The verdicts of an evaluation's rows as CSV; an image without verdicts has no scores."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    several = any(row["dataset_id"] for row in rows)
    writer.writerow([*COLUMNS, *([DATASET] if several else [])])
    for row in rows:
        names, scores = ([one[key] for one in row["points"]] for key in ("point", who))
        success = None not in scores
        writer.writerow([
            *(row["prompt_id"], row["number"], success),
            *(json.dumps(names, ensure_ascii=False), json.dumps(scores if success else [])),
            "\n".join(row.get("said", ())),
            *([row["dataset_id"]] if several else []),
        ])  # fmt: skip
    return file.getvalue()


def read_judgements(path: Path) -> list[dict[str, Any]]:
    """Rows {dataset_id, prompt_id, number, image, points, missing} as an evaluation has them, with
    a judge's verdicts alone.

    Raises:
        DataError: not such a file; or lines that are wrong, all reported: an image that is there
            twice, an unknown test point, a verdict outside 0 to 1, fewer or more than test points.
    """
    problems = Problems(path)
    values = _json_values if path.suffix == ".jsonl" else _csv_values
    rows: list[dict[str, Any]] = []
    numbers: dict[tuple[int, int], set[int]] = {}
    for where, value in values(path, problems):
        own = Checked(path, problems, where, value)
        index = own.whole("index", 0, MOST)
        dataset = own.whole(DATASET, 0, MOST) if DATASET in value else 0
        seen = numbers.setdefault((dataset, index), set())
        number = own.whole("dup_idx", 0, MOST) if "dup_idx" in value else len(seen)
        if number in seen:
            own.wrong(f"image {number} of prompt {index} stands twice")
        seen.add(number)
        points, missing = _points(own)
        rows.append(
            {"dataset_id": dataset, "prompt_id": index, "number": number}
            | {"image": f"{dataset}_{index}_{number}", "points": points, "missing": missing}
        )
    problems.raise_if_any()
    if not rows:
        raise DataError(f"{path}: no verdicts")
    return rows


def _points(own: Checked) -> tuple[list[dict[str, Any]], str | None]:
    """The test points of an image with their verdicts; and why it has none."""
    names, scores, success = (own.get(key) for key in ("testpoints", "scores", "success"))
    if not isinstance(names, list) or not names:
        own.wrong(f"key 'testpoints': a list of names, not {short(names)}")
        return [], None
    for name in names:
        _require_known(own, name)
    if success is not None and not isinstance(success, bool):  # 0 == False, and is none
        own.wrong(f"key 'success': true or false, not {short(success)}")
    if success is False:
        return [_point(name, None) for name in names], "no verdicts in the file"
    if not isinstance(scores, list) or len(scores) != len(names):
        own.wrong(f"key 'scores': a list of {len(names)}, one a test point, not {short(scores)}")
        return [], None
    for score in scores:
        if not isinstance(score, int | float) or not 0 <= score <= 1:
            own.wrong(f"key 'scores': verdicts are 0 or 1, not {short(score)}")
            return [], None
    return [_point(*one) for one in zip(names, map(float, scores), strict=True)], None


def _point(name: str, verdict: float | None) -> dict[str, Any]:
    return {"point": name, "judge": verdict, "gold": None}


def _require_known(own: Checked, name: Any) -> None:
    try:
        dimension_of(name if isinstance(name, str) else short(name))
    except UnknownPoint as error:
        own.wrong(f"key 'testpoints': {error}")


def _json_values(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, value in json_lines(path, problems):
        if isinstance(value, dict) and value.keys() >= NEEDED:
            yield where, value
        else:
            problems.add(where, f"an object with {', '.join(sorted(NEEDED))}, not {short(value)}")


def _csv_values(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    header, rows = csv_rows(path, problems)
    is_upstream = set(header) >= UPSTREAM
    if not is_upstream and not set(header) >= NEEDED:
        wanted = " or ".join(", ".join(sorted(one)) for one in (NEEDED, UPSTREAM))
        raise DataError(f"{path}: line 1: columns {wanted} expected, found {', '.join(header)}")
    for line, row in rows:
        where, value = f"line {line}", dict[str, Any](index=_whole(row["index"]))
        if is_upstream:
            value["testpoints"] = read_list(row["testpoint"])
            value["scores"] = _result_scores(row["result_json"])
        else:
            value |= {key: read_list(row[key]) for key in ("testpoints", "scores")}
            value |= {key: _whole(row[key]) for key in ("dup_idx", DATASET) if key in row}
            if "success" in row:
                told = row["success"].strip()
                value["success"] = _TRUTH.get(told.casefold(), told)
        yield where, value


def _whole(cell: str) -> int | str:
    text = cell.strip()
    return int(text) if text.isdecimal() and len(text) <= 9 else text


def _result_scores(cell: str) -> Any:
    try:
        value = parse_json(cell)
    except NotJson as error:
        return f"not JSON: {error}"
    return value.get("score") if isinstance(value, dict) else value
