"""Reward `scene_edit`: was an edit of a scene followed, and the rest kept? By the exact checker.

What `complex_edit` asks a judge for, of scenes, as far as it can be counted: following is the share
of the atomic edits that are there. No judge is asked, so it can be had anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from atelier.config.sections.rewards import SceneEditConfig
from atelier.data.prompts import Prompt
from atelier.data.render import render_objects
from atelier.data.scenes import SceneObject
from atelier.errors import DataError
from atelier.rewards.base import Direction, Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.edit_gate import followed_and_kept

if TYPE_CHECKING:
    from atelier.data.edit_check import EditResult


class SceneEditScorer:
    """Weighted sum of following and preserving; in [0, sum of the weights].

    Details: following and preserving, each in [0, 1], and what is `wrong`.
    """

    name = "scene_edit"
    version = "scene_edit-2"
    direction: Direction = "higher_is_better"

    def __init__(self, config: SceneEditConfig) -> None:
        self.config = config
        self.value_range = (0.0, config.following_weight + config.preserving_weight)

    def weights(self) -> Sequence[Path]:
        return ()

    def score(self, batch: ScoreBatch) -> Scores:
        found = [
            self._score(image, Prompt(0, 0, text, dict(metadata)))
            for image, text, metadata in zip(
                batch.images, batch.prompts, batch.metadata, strict=True
            )
        ]
        return Scores(self.name, [value for value, _ in found], [seen for _, seen in found])

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """Of two edits both, one and none are there, and all else is as it was."""
        from atelier.data.compound_edits import CompoundEdit, Step
        from atelier.data.edit_rows import compound_prompt

        circle, cross = SceneObject("circle", "red", (1, 0)), SceneObject("cross", "green", (0, 2))
        blue, square = SceneObject("circle", "blue", (1, 0)), SceneObject("square", "black", (2, 2))
        steps = (Step("colour", "red circle", "blue"), Step("add", "black square"))
        row = compound_prompt(CompoundEdit((circle, cross), (blue, cross, square), steps))
        shown = [(blue, cross, square), (blue, cross), (circle, cross)]
        batch = ScoreBatch(
            images=[render_objects(objects) for objects in shown],
            prompts=[row.text] * 3,
            metadata=[row.metadata] * 3,
            group_ids=[0] * 3,
        )
        return batch, [followed_and_kept(self.config, one, 1.0) for one in (1.0, 0.5, 0.0)], 1e-6

    def _score(self, image: Image.Image, prompt: Prompt) -> tuple[Score, Mapping[str, Any]]:
        found = checked_edit(image, prompt)
        if isinstance(found, Missing):
            return found, {}
        score = followed_and_kept(self.config, found.following, found.preserving)
        seen = {
            "following": found.following,
            "preserving": found.preserving,
            "wrong": found.wrong,
        }
        return score, seen


def checked_edit(image: Image.Image, prompt: Prompt) -> EditResult | Missing:
    """What the exact checker says of an edited picture."""
    from atelier.data.edit_rows import check_row  # scipy, which a service may lack

    try:
        found = check_row(image, prompt)
    except DataError as error:
        return Missing(f"its edit cannot be used: {error}")
    return Missing("the prompt's metadata has no edit of a scene") if found is None else found
