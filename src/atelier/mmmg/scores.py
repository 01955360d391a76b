"""What a picture scores: how much of the knowledge it shows, times how readable it is.

Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atelier.mmmg.fidelity import dice, edge_jaccard, node_jaccard, official
from atelier.mmmg.graphs import KnowledgeGraph, truth_and_shown

CALM, CROWDED = 70, 160  # regions up to which a picture is readable, and from which it is not


def readability(regions: int | None) -> float | None:
    """1 up to 70 regions, 0 from 160, evenly between; None where they could not be counted.

    Deviation: published, a count that is missing is one of 0, hence readable.
    """
    if regions is None:
        return None
    return 1.0 if regions <= CALM else max((CROWDED - regions) / (CROWDED - CALM), 0.0)


@dataclass(frozen=True)
class Fidelity:
    """How much of a sample's knowledge is shown, by each measure; all in [0, 1].

    `official` is None of a graph that is too large for it.
    """

    dice: float
    official: float | None
    node_jaccard: float
    edge_jaccard: float


def fidelity(
    known: KnowledgeGraph, verdicts: Mapping[str, bool], sample: str = "knowledge graph"
) -> Fidelity:
    """All measures of one measurement.

    Args:
        verdicts: by key; what has none counts neither for nor against the picture.

    Raises:
        MalformedPredicate: see `graphs.build`.
    """
    graphs = truth_and_shown(known, verdicts, sample)
    return Fidelity(dice(*graphs), official(*graphs), node_jaccard(*graphs), edge_jaccard(*graphs))


def sample_score(readable: float | None, faithful: float | None) -> float | None:
    """Readability times knowledge fidelity; None where either is missing."""
    return None if readable is None or faithful is None else readable * faithful
