"""Test points of a row of a prompt table: those that its file names, or those of its scene.

Metadata of a file's rows have "testpoints" and "descriptions" (readers/unigenbench.py).
"""

from __future__ import annotations

from typing import Any, TypeGuard

from atelier.data import scenes
from atelier.data.prompts import Prompt
from atelier.data.scene_points import scene_points
from atelier.errors import DataError
from atelier.legible import legible_value
from atelier.unigenbench.points import Point
from atelier.unigenbench.taxonomy import UnknownPoint, dimension_of


def points_of(prompt: Prompt) -> list[Point]:
    """The test points that images of a prompt are checked for; empty where it has none.

    Raises:
        DataError: they are no test points; the prompt is named.
    """
    names, texts = (prompt.metadata.get(key) for key in ("testpoints", "descriptions"))
    if names is None:
        scene = prompt.metadata.get("scene")
        return [] if scene is None else scene_points(scenes.from_dict(scene))
    which = f"prompt {prompt.prompt_id}"
    if not (_are_texts(names) and _are_texts(texts) and len(names) == len(texts)):
        shown = legible_value([names, texts])
        raise DataError(f"{which}: {shown} are no test points, each with a description")
    try:
        for name in names:
            dimension_of(name)
    except UnknownPoint as error:
        raise DataError(f"{which}: its test points are of no use: {error}") from error
    return [Point(*one) for one in zip(names, texts, strict=True)]


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
