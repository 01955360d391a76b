"""Knowledge graphs of the scene world: coloured shapes, and how they stand to each other.

Elements are shapes, dependencies are places that stand for a relation: what comes first stands on
the left, a cause above its effect, what needs a thing below it. So the exact checker can give every
verdict that MMMG asks a judge for. Source: the Qwen vision GRPO guide.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

from atelier.data.keys import uniform
from atelier.data.scenes import (
    COLOURS,
    GRID,
    HELDOUT_SHARE,
    SHAPES,
    SceneObject,
    Split,
    objects_from_list,
    objects_to_list,
    relation_of,
)
from atelier.errors import DataError
from atelier.legible import legible_value
from atelier.mmmg.benchmark import TIERS
from atelier.mmmg.graphs import KnowledgeGraph


class Sense(NamedTuple):
    """Where the source of a relation stands, seen from its target, and what is said of it."""

    place: str
    reason: str


SENSES = {
    "TemporalOrder": Sense("left of", "what comes first stands on the left"),
    "Causes": Sense("above", "a cause stands above its effect"),
    "Requires": Sense("below", "what needs a thing stands below it"),
}
DISCIPLINES: dict[str, tuple[str, ...]] = {
    "order": ("TemporalOrder",),
    "cause": ("Causes",),
    "need": ("Requires",),
    "mixed": tuple(SENSES),
}
# Objects and links of a graph, by tier.
SIZES = dict(zip(TIERS, ((2, 1), (3, 2), (4, 3), (5, 4), (6, 6), (7, 8)), strict=True))


class Link(NamedTuple):
    """A relation of `SENSES` between the objects of two numbers."""

    relation: str
    source: int
    target: int


@dataclass(frozen=True)
class SceneGraph:
    """Different objects in different cells, and links that their places bear out.

    Raises:
        DataError: two objects are alike or share a cell, or a link does not hold.
    """

    tier: str
    discipline: str
    objects: tuple[SceneObject, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        count = len(self.objects)
        nouns, cells = ({getattr(one, name) for one in self.objects} for name in ("noun", "cell"))
        if not count or len(nouns) < count or len(cells) < count:
            raise DataError("scene graph: objects must differ, each in a cell of its own")
        for link in self.links:
            if not _holds(link, self.objects):
                raise DataError(f"scene graph: {tuple(link)} does not hold for its objects")

    @property
    def knowledge(self) -> KnowledgeGraph:
        """What a picture of it should show, as MMMG writes it."""
        nouns = [one.noun for one in self.objects]
        dependencies = [
            f"{one.relation}({nouns[one.source]}, {nouns[one.target]})" for one in self.links
        ]
        return KnowledgeGraph(tuple(nouns), tuple(dependencies))


def sample_graph(
    rng: random.Random, tier: str, discipline: str, split: Split | None = None
) -> SceneGraph:
    """Draw a graph, from one split or (None) from both; a pure function of `rng`.

    Every object has a link, and two objects have one at most.

    Raises:
        DataError: an unknown tier or discipline.
    """
    for what, name, known in (("tier", tier, SIZES), ("discipline", discipline, DISCIPLINES)):
        if name not in known:
            raise DataError(f"{what} {legible_value(name)}: one of {', '.join(known)}")
    while True:
        graph = _drawn(rng, tier, discipline)
        if graph is not None and split in (None, split_of(graph)):
            return graph


def split_of(graph: SceneGraph) -> Split:
    """The one split that the graph's things belong to, wherever they stand; 15 % is held out."""
    content = ", ".join(sorted(one.noun for one in graph.objects))
    return "heldout" if uniform("graph split", content) < HELDOUT_SHARE else "train"


def prompt(graph: SceneGraph) -> str:
    """The text that asks for the graph.

    "a red circle left of a blue square and above a green cross and the green cross left of ..."
    """
    told: set[int] = set()

    def name(number: int) -> str:
        article = "the" if number in told else "a"
        told.add(number)
        return f"{article} {graph.objects[number].noun}"

    clauses = []
    for source in dict.fromkeys(one.source for one in graph.links):
        subject = name(source)
        own = [one for one in graph.links if one.source == source]
        places = [f"{SENSES[one.relation].place} {name(one.target)}" for one in own]
        clauses.append(f"{subject} {' and '.join(places)}")
    return " and ".join(clauses)


def annotation(graph: SceneGraph) -> str:
    """What its dependencies mean in a picture, a sentence each."""
    return " ".join(
        f"{key}: the {graph.objects[one.source].noun} is {SENSES[one.relation].place} the "
        f"{graph.objects[one.target].noun}; {SENSES[one.relation].reason}."
        for key, one in zip(graph.knowledge.dependencies, graph.links, strict=True)
    )


def to_dict(graph: SceneGraph) -> dict[str, Any]:
    """JSON-ready form of a graph; `from_dict` reads it back."""
    return {
        "tier": graph.tier,
        "discipline": graph.discipline,
        "objects": objects_to_list(graph.objects),
        "links": [list(one) for one in graph.links],
    }


def from_dict(data: dict[str, Any]) -> SceneGraph:
    """Read a graph written by `to_dict`.

    Raises:
        DataError: a missing or unknown key, or a value that is no graph.
    """
    try:
        objects = objects_from_list(data["objects"])
        links = tuple(Link(*one) for one in data["links"])
        return SceneGraph(data["tier"], data["discipline"], objects, links)
    except (KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"scene graph {legible_value(data)}: not a scene graph ({error})"
        ) from error


def _holds(link: Link, objects: tuple[SceneObject, ...]) -> bool:
    source, target = objects[link.source], objects[link.target]
    return relation_of(source.cell, target.cell) == SENSES[link.relation].place


def _drawn(rng: random.Random, tier: str, discipline: str) -> SceneGraph | None:
    """A graph of objects anywhere; None where they do not allow enough links."""
    count, wanted = SIZES[tier]
    nouns = rng.sample([(shape, colour) for shape in SHAPES for colour in COLOURS], count)
    cells = rng.sample([(row, column) for row in range(GRID) for column in range(GRID)], count)
    objects = tuple(SceneObject(*noun, cell=cell) for noun, cell in zip(nouns, cells, strict=True))
    possible = list(_possible(objects, DISCIPLINES[discipline]))
    rng.shuffle(possible)
    links: dict[frozenset[int], Link] = {}
    linked: set[int] = set()
    # First those that link something new, then as many others as are wanted.
    for is_new in (True, False):
        for one in possible:
            ends = frozenset((one.source, one.target))
            if len(links) < wanted and ends not in links and (not is_new or not ends <= linked):
                links[ends] = one
                linked |= ends
    if len(links) < wanted or len(linked) < count:
        return None
    in_order = sorted(links.values(), key=lambda one: (one.source, one.target))
    return SceneGraph(tier, discipline, objects, tuple(in_order))


def _possible(objects: tuple[SceneObject, ...], relations: tuple[str, ...]) -> Iterator[Link]:
    for relation in relations:
        for source, target in permutations(range(len(objects)), 2):
            link = Link(relation, source, target)
            if _holds(link, objects):
                yield link
