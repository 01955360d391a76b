"""Reward `geneval`: GenEval's score of the objects that a detector finds.

The published detector (Mask2Former with CLIP for colours) wants packages of its own, so detection
is a function that the configuration names: it is called as detect(images, metadata, **parameters)
and gives, an image, the objects found (geneval.Detection), or None where it could not look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from atelier.config.sections.rewards import GenevalConfig
from atelier.rewards.base import Direction, Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.functions import file_version, imported, require_call
from atelier.rewards.scorers.geneval import Detection, score

Detector = Callable[..., Sequence[Iterable[Detection] | None]]
Golden = tuple[ScoreBatch, Sequence[float], float]


class GenevalScorer:
    """One of GenEval's three scores; `soft` may be below 0. Details: all three, and what was found.

    A detector may carry `version`, and `golden`: a function that gives a batch, its scores, which
    must be 0 or 1 to be right for all three, and the tolerance.
    """

    name = "geneval"
    direction: Direction = "higher_is_better"

    def __init__(self, config: GenevalConfig) -> None:
        self.config = config
        self.value_range = (-math.inf if config.score == "soft" else 0.0, 1.0)
        self._found: Detector | None = None

    @property
    def version(self) -> str:
        detector = self._detector()
        own = getattr(detector, "version", None) or file_version(detector, self.config.detector)
        return f"geneval-1/{self.config.score}/{own}"

    def score(self, batch: ScoreBatch) -> Scores:
        asked = [n for n, one in enumerate(batch.metadata) if one.get("include") and "tag" in one]
        values: list[Score] = [Missing("its metadata has no GenEval clauses")] * len(batch)
        details: list[Mapping[str, Any]] = [{}] * len(batch)
        if asked:
            shown = batch.at(asked)
            found = self._detector()(shown.images, shown.metadata, **self.config.parameters)
            for place, detections in zip(asked, found, strict=True):
                values[place], details[place] = self._scored(detections, batch.metadata[place])
        return Scores(self.name, values, details)

    def weights(self) -> Sequence[Path]:
        """None that is known: a detector's models are its own."""
        return ()

    def golden(self) -> Golden:
        """The detector's own; else an empty picture, in which it must find nothing."""
        own = getattr(self._detector(), "golden", None)
        if own is not None:
            found: Golden = own()
            return found
        metadata = {"tag": "single_object", "include": [{"class": "bench", "count": 1}]}
        empty = Image.new("RGB", (256, 256), "white")
        return ScoreBatch([empty], ["a bench"], [metadata], [0]), [0.0], 1e-6

    def _detector(self) -> Detector:
        if self._found is None:
            found = imported(self.config.detector, "rewards.geneval.detector")
            require_call(found, 2, self.config.parameters, "rewards.geneval.parameters")
            self._found = found
        return self._found

    def _scored(
        self, detections: Iterable[Detection] | None, metadata: Mapping[str, Any]
    ) -> tuple[Score, Mapping[str, Any]]:
        if detections is None:
            return Missing("the detector could not look at the image"), {}
        found = list(detections)
        try:
            scores = score(found, metadata)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            return Missing(f"its metadata is not GenEval's: {type(error).__name__}: {error}"), {}
        seen = {
            **vars(scores),
            "found": [f"{one.colour or ''} {one.name}".strip() for one in found],
        }
        return float(getattr(scores, self.config.score)), seen
