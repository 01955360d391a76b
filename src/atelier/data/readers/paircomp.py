"""PairComp: JSON list of {category, caption1, caption2}, two captions that differ in one thing.

Source: spec/janus.md 7.
"""

from pathlib import Path
from typing import Any

from atelier.data.prompts import Prompt
from atelier.data.readers.problems import NotJson, Problems, did_you_mean, parse_json, read_text
from atelier.errors import DataError

KEYS = ("category", "caption1", "caption2")


def read(path: Path) -> list[Prompt]:
    """Two prompts a pair, 2i and 2i + 1.

    Metadata: "pair" (i), "category", "caption" (1 or 2) and "partner" (the other caption).

    Raises:
        DataError: not JSON (line named), not a list; or bad pairs, all reported with their number
            and key.
    """
    try:
        pairs = parse_json(read_text(path))
    except NotJson as error:
        line = f"line {error.line}: " if error.line else ""
        raise DataError(f"{path}: {line}not JSON: {error}") from error
    if not isinstance(pairs, list) or not pairs:
        raise DataError(f"{path}: a non-empty JSON list of pairs expected")
    problems = Problems(path)
    prompts: list[Prompt] = []
    for index, pair in enumerate(pairs):
        if not _check(problems, f"pair {index}", pair):
            continue
        for caption, partner in ((1, 2), (2, 1)):
            metadata = {
                "pair": index,
                "category": pair["category"],
                "caption": caption,
                "partner": pair[f"caption{partner}"],
            }
            prompts.append(Prompt(2 * index + caption - 1, 0, pair[f"caption{caption}"], metadata))
    problems.raise_if_any()
    return prompts


def _check(problems: Problems, where: str, pair: Any) -> bool:
    if not isinstance(pair, dict):
        problems.add(where, f"an object with {', '.join(KEYS)} expected, found {pair!r}")
        return False
    bad = [key for key in KEYS if not isinstance(pair.get(key), str) or not pair[key].strip()]
    for key in bad:
        problems.add(where, f"key {key!r}: a non-empty text, not {pair.get(key)!r}")
    unknown = sorted(pair.keys() - set(KEYS))
    for key in unknown:
        problems.add(where, f"unknown key {key!r}{did_you_mean(key, KEYS)}")
    same = not bad and pair["caption1"] == pair["caption2"]
    if same:
        problems.add(where, "caption1 and caption2 are the same")
    return not bad and not unknown and not same
