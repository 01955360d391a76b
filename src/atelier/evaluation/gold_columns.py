"""What the exact checker says of an image, as columns of its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atelier.data import gold, scenes
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene
from atelier.errors import DataError

FACT_KINDS = ("spelling", "ink", "count", "total", "position")
_KIND_OF = {
    "letters": "spelling",
    "word colour": "ink",
    "objects": "total",
    "relation": "position",
    "word relation": "position",
}


def gold_columns(image: NDArray[np.uint8], prompt: Prompt) -> dict[str, Any]:
    """`gold`: the share of the scene's facts that hold; `strict`: 1 where all do, else 0;
    `gold_facts`: each by its name. All None where the prompt has no scene."""
    scene = scene_of(prompt)
    if scene is None:
        return {"gold": None, "strict": None, "gold_facts": None}
    result = gold.check(image, scene)
    return {
        "gold": float(result.score),
        "strict": float(all(result.facts.values())),
        "gold_facts": dict(result.facts),
    }


def require_gold(rows: Sequence[Mapping[str, Any]], lacks: str, key: str) -> None:
    """Where there is no judge, every row has to have a `gold`.

    Args:
        lacks: what a prompt is not, or has not, if it has none.
        key: where a judge is named.

    Raises:
        DataError: a row has none.
    """
    for one in rows:
        if one["gold"] is None:
            raise DataError(
                f"prompt {one['prompt_id']} {lacks} that could be checked: name a judge in {key}"
            )


def scene_of(prompt: Prompt) -> Scene | None:
    """The scene that a prompt asks for, where it is one of the scene world."""
    scene = prompt.metadata.get("scene")
    return None if scene is None else scenes.from_dict(scene)


def fact_kind(fact: str) -> str:
    """Which of `FACT_KINDS` a fact of `scenes.facts` is. `count` is that of one noun, so it holds
    its shape and its colour too; `total` says that nothing else is there."""
    return "spelling" if fact.startswith("letter ") else _KIND_OF.get(fact, "count")
