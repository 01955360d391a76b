"""PairComp's score files: JSON {pair: [{pair_idx, prompt_idx, image_idx, score}, ...]}, four images
a pair. Source: FocusDiff and Janus-Pro-R1.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.data.readers.objects import checked
from atelier.data.readers.problems import Problems, json_file
from atelier.errors import DataError
from atelier.evaluation.results import summarize
from atelier.evaluation.statistics import Interval
from atelier.evaluation.units import part
from atelier.legible import legible_value

KEYS = ("pair_idx", "prompt_idx", "image_idx", "score")
IMAGES_OF_A_PAIR = 4
_NUMBER = re.compile("0|[1-9][0-9]{0,8}")  # as Python writes it: one name a pair


def as_score_file(rows: Sequence[Mapping[str, Any]], column: str) -> str:
    """The scores of an evaluation's rows; a pair with a missing one is left out."""
    pairs: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        entry = (row["pair"], row["caption"] - 1, row["number"], row[column])
        pairs.setdefault(row["pair"], []).append(dict(zip(KEYS, entry, strict=True)))
    whole = {
        str(pair): images
        for pair, images in pairs.items()
        if all(one["score"] is not None for one in images)
    }
    return json.dumps(whole, indent=1) + "\n"


def read_score_file(
    path: Path, categories: Mapping[int, str] | None = None
) -> list[dict[str, Any]]:
    """Rows {pair, caption, number, image, category, judge}, one an image.

    Args:
        categories: of each pair, by its number; a pair without one is refused.

    Raises:
        DataError: not JSON, not an object; or entries that are wrong, all reported by their pair.
    """
    pairs = json_file(path)
    if isinstance(pairs, list) and pairs and isinstance(pairs[0], dict) and "caption1" in pairs[0]:
        raise DataError(f"{path}: these are PairComp's captions and no scores; name it in --pairs")
    if not isinstance(pairs, dict) or not pairs:
        keys = ", ".join(KEYS)
        raise DataError(
            f"{path}: a non-empty JSON object of pairs expected, each with its number from 0 and "
            f"a list of {IMAGES_OF_A_PAIR} objects of {keys}"
        )
    problems = Problems(path)
    rows: list[dict[str, Any]] = []
    for name, images in pairs.items():
        rows += _pair(path, problems, name, images, categories)
    problems.raise_if_any()
    return rows


@dataclass(frozen=True)
class CategoryMeans:
    """s_a and s_g of the pairs of a category, each a mean with its bootstrap interval over pairs.

    `category` None is all of them together: the unweighted mean of the categories. `pairs` is how
    many there are; those without a score are in no mean. Without any there is none, and none of all
    where a category has none: a mean of the others is no mean of PairComp.
    """

    category: str | None
    arithmetic: Interval | None
    geometric: Interval | None
    pairs: int


def category_means(
    rows: Sequence[Mapping[str, Any]],
    samples: int = 10_000,
    who: str = "judge",
    there: Mapping[int, str] | None = None,
) -> list[CategoryMeans]:
    """The categories in the order in which they come, and all of them last.

    Args:
        rows: as `read_score_file` gives them, or those of an evaluation.
        samples: resamples of the intervals.
        who: whose scores, one of the values of `PAIR_SCORES`.
        there: the category of every pair that there is; default: the pairs of the rows.
    """
    found = summarize(rows, (), samples, "pair")
    pairs: Mapping[Any, str | None] = there or {row["pair"]: row["category"] for row in rows}
    counts = Counter(one for one in pairs.values() if one is not None)

    def means(category: str | None, count: int, is_whole: bool = True) -> CategoryMeans:
        names = [f"{who}_arithmetic", f"{who}_geometric"]
        parts = [part(name, category) if category else name for name in names]
        arithmetic, geometric = (
            Interval(**found[name]) if is_whole and name in found else None for name in parts
        )
        return CategoryMeans(category, arithmetic, geometric, count)

    own = [means(category, count) for category, count in counts.items()]
    is_whole = all(one.arithmetic is not None for one in own)
    return [*own, means(None, len(pairs), is_whole)]


def _pair(
    path: Path,
    problems: Problems,
    name: str,
    images: Any,
    categories: Mapping[int, str] | None,
) -> list[dict[str, Any]]:
    where = f"pair {name}"
    if not _NUMBER.fullmatch(name):
        problems.add(where, "pairs are called by their number, from 0")
        return []
    if not isinstance(images, list) or len(images) != IMAGES_OF_A_PAIR:
        problems.add(where, f"a list of {IMAGES_OF_A_PAIR} images expected")
        return []
    category = None
    if categories is not None:
        category = categories.get(int(name))
        if category is None:
            problems.add(where, f"is not one of the {len(categories)} pairs")
    rows, seen = [], set()
    for index, image in enumerate(images):
        one = checked(path, problems, f"{where}: image {index}", image, KEYS)
        if one is None:
            continue
        caption, number = (one.whole(key, 0, 1) for key in ("prompt_idx", "image_idx"))
        if str(one.get("pair_idx")) != name:
            found = legible_value(one.get("pair_idx"))
            one.wrong(f"key 'pair_idx': {name}, as its list is called, not {found}")
        if (caption, number) in seen:
            one.wrong(f"prompt_idx {caption}, image_idx {number} stands twice")
        seen.add((caption, number))
        score = one.number("score", 0, 1)
        rows.append(
            {"pair": name, "caption": caption + 1, "number": number, "category": category}
            | {"image": f"{name}_{caption}_{number}.png", "judge": score}
        )
    return rows
