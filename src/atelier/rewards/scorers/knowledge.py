"""What MMMG's scorers have in common: a prompt's knowledge graph, regions, and the score of both.

score = readability x knowledge fidelity by Dice
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from PIL.Image import Image

from atelier.config.sections.regions import RegionsConfig
from atelier.errors import ConfigError
from atelier.mmmg.graphs import KnowledgeGraph, build, knowledge_graph
from atelier.mmmg.predicates import MalformedPredicate
from atelier.mmmg.regions import Regions
from atelier.mmmg.scores import Fidelity, readability, sample_score
from atelier.rewards.base import Missing, Score
from atelier.rewards.regions.base import region_counter

logger = logging.getLogger(__name__)

Seen = dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """What a picture should show.

    Attributes:
        questions: about an element or dependency, by its key, where the data has one.
        name: for messages.
    """

    known: KnowledgeGraph
    annotation: str
    questions: Mapping[str, str]
    name: str


def sample_of(metadata: Mapping[str, Any]) -> Sample | Missing:
    """The sample that metadata describes ("knowledge_graph", "annotation", "questions", "key"), or
    why none."""
    if "knowledge_graph" not in metadata:
        return Missing("the prompt's metadata has no knowledge graph")
    name, annotation = str(metadata.get("key", "knowledge graph")), metadata.get("annotation")
    try:
        known = knowledge_graph(metadata["knowledge_graph"])
        build(known.elements, known.dependencies, name)
    except (ValueError, MalformedPredicate) as error:
        return Missing(f"its knowledge graph cannot be used: {error}")
    asked = metadata.get("questions")
    questions = {} if not isinstance(asked, Mapping) else {str(k): str(v) for k, v in asked.items()}
    return Sample(known, annotation if isinstance(annotation, str) else "", questions, name)


class Regioned:
    """Counts the regions of pictures; what cannot be counted is missing.

    Args:
        key: where the section stands, for messages.
    """

    def __init__(self, config: RegionsConfig, key: str) -> None:
        self.counter = region_counter(config, key)

    def of(self, image: Image) -> Regions | Missing:
        """The regions of a picture.

        Raises:
            ConfigError: none can ever be counted as it is configured.
        """
        try:
            return self.counter.count(image)
        except ConfigError:
            raise
        except Exception as error:
            # One unusable picture must not cost the batch, nor look like an empty one.
            logger.exception("counting regions failed")
            return Missing(f"regions could not be counted: {type(error).__name__}: {error}")


def scored(regions: Regions | Missing, faithful: Fidelity | Missing) -> tuple[Score, Seen]:
    """The score of a picture, and what is known of it: its measures, as far as they were had."""
    seen: Seen = {}
    if not isinstance(regions, Missing):
        seen |= {"regions": regions.count, "readability": readability(regions.count)}
    if not isinstance(faithful, Missing):
        seen |= asdict(faithful)
    for one in (regions, faithful):
        if isinstance(one, Missing):
            return one, seen
    value = sample_score(seen["readability"], seen["dice"])
    assert value is not None  # both are there
    return value, seen


def mean_fidelity(measured: Sequence[Fidelity]) -> Fidelity:
    """The means over measurements, of which there is at least one; None where one lacks it."""
    columns = [asdict(one) for one in measured]
    means: dict[str, Any] = {name: _mean([one[name] for one in columns]) for name in columns[0]}
    return Fidelity(**means)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [one for one in values if one is not None]
    return sum(there) / len(there) if len(there) == len(values) else None
