"""Graphs of what a picture should show and of what it does, by the published rules.

Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atelier.legible import legible_value
from atelier.mmmg.predicates import Predicate, parse

Edge = tuple[str, str]


@dataclass(frozen=True)
class KnowledgeGraph:
    """What a picture should show: names of elements, and predicates between them, as written."""

    elements: tuple[str, ...]
    dependencies: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All that is asked about, each once: elements first."""
        return tuple(dict.fromkeys((*self.elements, *self.dependencies)))

    def to_json(self) -> dict[str, list[str]]:
        return {"elements": list(self.elements), "dependencies": list(self.dependencies)}


@dataclass(frozen=True)
class Graph:
    """A directed simple graph, possibly with loops; names in lower case, in the order in which they
    came: the official distance depends on it."""

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...] = ()

    @property
    def size(self) -> int:
        """Nodes and edges."""
        return len(self.nodes) + len(self.edges)


def knowledge_graph(value: Any) -> KnowledgeGraph:
    """A knowledge graph in JSON: {"elements": names, "dependencies": predicates}, each a list, or
    an object whose keys they are.

    Raises:
        ValueError: it is something else, or has no element; the message says what.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"an object with elements and dependencies, not {legible_value(value)}")
    elements = _texts("elements", value.get("elements"))
    if not elements:
        raise ValueError("elements is empty: nothing would be asked about")
    return KnowledgeGraph(elements, _texts("dependencies", value.get("dependencies", ())))


def build(
    elements: Iterable[str], dependencies: Iterable[str], sample: str = "knowledge graph"
) -> Graph:
    """The graph of elements and of those dependencies whose two ends can be found among them.

    Requires(a, b) is the edge from b to a, Defines(a, b) one each way, all others from a to b.

    Raises:
        MalformedPredicate: see `predicates.parse`; `sample` is named.
    """
    nodes = tuple(dict.fromkeys(one.strip().lower() for one in elements))
    edges: dict[Edge, None] = {}
    for text in dependencies:
        predicate = parse(text, sample)
        if predicate is None:
            continue
        source, target = (_resolved(one, nodes) for one in (predicate.source, predicate.target))
        if source is not None and target is not None:
            edges.update(dict.fromkeys(_directed(predicate, source, target)))
    return Graph(nodes, tuple(edges))


def truth_and_shown(
    known: KnowledgeGraph, verdicts: Mapping[str, bool], sample: str = "knowledge graph"
) -> tuple[Graph, Graph]:
    """The graph of all that was judged, and the graph of what was judged to be there.

    Args:
        verdicts: by key; what has none is in neither graph. Elements that differ in case alone are
            one node, shown where one of them is, as published.

    Raises:
        MalformedPredicate: see `build`.
    """
    elements = [key for key in known.elements if key in verdicts]
    dependencies = [key for key in known.dependencies if key in verdicts]
    seen, linked = ([key for key in keys if verdicts[key]] for keys in (elements, dependencies))
    return build(elements, dependencies, sample), build(seen, linked, sample)


def _directed(predicate: Predicate, source: str, target: str) -> list[Edge]:
    if predicate.relation == "requires":
        return [(target, source)]
    if predicate.relation == "defines":
        return [(source, target), (target, source)]
    return [(source, target)]


def _resolved(argument: str, nodes: tuple[str, ...]) -> str | None:
    """The node that an argument means: the one of its name, else the only one whose name holds it
    or, for an argument of several words, is held by it."""
    if argument in nodes:
        return argument
    likely = [node for node in nodes if argument in node or (" " in argument and node in argument)]
    return likely[0] if len(likely) == 1 else None


def _texts(what: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple | Mapping):
        found = tuple(value)
        if all(isinstance(one, str) and one.strip() for one in found):
            return found
    raise ValueError(f"{what}: a list of non-empty texts, not {legible_value(value)}")
