"""PairComp: JSON list of {category, caption1, caption2}, two captions that differ in one thing.

Source: FocusDiff and Janus-Pro-R1.
"""

from pathlib import Path

from atelier.data.prompts import Prompt
from atelier.data.readers.objects import checked
from atelier.data.readers.problems import Problems, json_list
from atelier.legible import alike

KEYS = ("category", "caption1", "caption2")


def read(path: Path) -> list[Prompt]:
    """Two prompts a pair, 2i and 2i + 1.

    Metadata: "pair" (i), "category", "caption" (1 or 2) and "partner" (the other caption).

    Raises:
        DataError: not JSON (line named), not a list; or bad pairs, all reported with their number
            and key; or categories whose means would be one metric.
    """
    problems = Problems(path)
    prompts: list[Prompt] = []
    for index, value in enumerate(json_list(path, "pairs")):
        pair = checked(path, problems, f"pair {index}", value, KEYS)
        if pair is None:
            continue
        category, *captions = (pair.text(key) for key in KEYS)
        if pair.is_right and captions[0] == captions[1]:
            pair.wrong("caption1 and caption2 are the same")
        prompts += both(index, captions, {"category": category})
    for one, other in alike(prompt.metadata["category"] for prompt in prompts):
        problems.add(
            f"category {other!r}",
            f"would have one mean with {one!r}, which differs in case, blanks or punctuation "
            "alone; write both alike, or name them apart",
        )
    problems.raise_if_any()
    return prompts


def both(pair: int, captions: list[str], metadata: dict[str, str]) -> list[Prompt]:
    """The two prompts of a pair, `metadata` being that of both."""
    return [
        Prompt(
            2 * pair + place,
            0,
            captions[place],
            {**metadata, "pair": pair, "caption": place + 1, "partner": captions[1 - place]},
        )
        for place in (0, 1)
    ]
