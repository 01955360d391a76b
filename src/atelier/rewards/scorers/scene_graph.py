"""Reward `scene_graph`: MMMG's score of a scene graph, its verdicts by the exact checker.

No judge is asked, so it can be had anywhere; `metadata["scene_graph"]` is what is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from atelier.config.sections.rewards import SceneGraphConfig
from atelier.data.graph_rows import graph_prompt
from atelier.data.render import render_objects
from atelier.data.scene_graphs import Link, SceneGraph, from_dict
from atelier.data.scenes import SceneObject
from atelier.errors import DataError
from atelier.given_up import while_wanted
from atelier.mmmg.scores import Fidelity, fidelity
from atelier.rewards.base import Direction, Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.knowledge import Regioned, Seen, scored
from atelier.rewards.scorers.mmmg import parts


class SceneGraphScorer:
    """Readability times knowledge fidelity by Dice, in [0, 1].

    Details: as of `mmmg`, without a judge's words.
    """

    name = "scene_graph"
    direction: Direction = "higher_is_better"
    value_range = (0.0, 1.0)

    def __init__(self, config: SceneGraphConfig) -> None:
        self._regioned = Regioned(config.regions, "rewards.scene_graph.regions")

    @property
    def version(self) -> str:
        return f"scene_graph-1/{self._regioned.counter.version}"

    def weights(self) -> Sequence[Path]:
        return self._regioned.counter.weights()

    def score(self, batch: ScoreBatch) -> Scores:
        found = [
            self._score(image, metadata)
            for image, metadata in while_wanted(zip(batch.images, batch.metadata, strict=True))
        ]
        return Scores(self.name, [value for value, _ in found], [seen for _, seen in found])

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A circle left of a square; the circle alone: two of the four parts of both graphs."""
        objects = (SceneObject("circle", "red", (1, 0)), SceneObject("square", "blue", (1, 2)))
        graph = SceneGraph("preschool", "order", objects, (Link("TemporalOrder", 0, 1),))
        row = graph_prompt(graph)
        images = [render_objects(objects), render_objects(objects[:1])]
        return ScoreBatch(images, [row.text] * 2, [row.metadata] * 2, [0, 0]), [1.0, 0.5], 1e-6

    def _score(self, image: Image.Image, metadata: Mapping[str, Any]) -> tuple[Score, Seen]:
        faithful, shown = gold_fidelity(image, metadata)
        if isinstance(faithful, Missing):
            return faithful, {}
        value, seen = scored(self._regioned.of(image), faithful)
        return value, shown | seen


def gold_fidelity(
    image: Image.Image, metadata: Mapping[str, Any]
) -> tuple[Fidelity | Missing, Seen]:
    """The fidelity of a picture to its scene graph, by the exact checker, and what it shows."""
    from atelier.data.graph_check import check_graph  # scipy, which a service may lack

    if metadata.get("scene_graph") is None:
        return Missing("the prompt's metadata has no scene graph"), {}
    try:
        graph = from_dict(metadata["scene_graph"])
    except DataError as error:
        return Missing(f"its scene graph cannot be used: {error}"), {}
    verdicts = check_graph(image, graph)
    return fidelity(graph.knowledge, verdicts), parts(graph.knowledge, verdicts)
