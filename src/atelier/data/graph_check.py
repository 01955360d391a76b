"""The gold check of a scene graph: the verdicts that a faultless judge would give.

Exact rules over the shapes that `gold` finds, no learning. Source: the Qwen vision GRPO guide.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atelier.data.gold import FoundShape, find_shapes, relation_between
from atelier.data.scene_graphs import SENSES, SceneGraph


def check_graph(image: Image.Image | NDArray[np.uint8], graph: SceneGraph) -> dict[str, bool]:
    """Verdicts of a picture (RGB, or uint8 [H, W, 3], square) by the keys of `graph.knowledge`.

    An element is there where the picture holds exactly one of it; a dependency where both ends are,
    and stand as it says.

    Raises:
        DataError: the array is not uint8 [H, W, 3].
    """
    found = find_shapes(image)
    own = [_only(found, one.noun) for one in graph.objects]
    known = graph.knowledge
    verdicts = {key: one is not None for key, one in zip(known.elements, own, strict=True)}
    for key, link in zip(known.dependencies, graph.links, strict=True):
        source, target = own[link.source], own[link.target]
        verdicts[key] = (
            source is not None
            and target is not None
            and relation_between(source.centre, target.centre) == SENSES[link.relation].place
        )
    return verdicts


def _only(found: list[FoundShape], noun: str) -> FoundShape | None:
    """The shape of a name, where there is exactly one."""
    own = [one for one in found if f"{one.colour} {one.shape}" == noun]
    return own[0] if len(own) == 1 else None
