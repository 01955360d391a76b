"""Reward `ocr`: how much of the target text can be read in the image.

The target is `metadata["target"]`; of a prompt with several, `metadata["targets"]` are all. An
image without one has no score: it is Missing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from atelier.config.sections.rewards import OcrConfig
from atelier.errors import ConfigError
from atelier.rewards.base import Direction, Missing, Score, ScoreBatch, Scores
from atelier.rewards.images import drawn_word
from atelier.rewards.scorers import ocr_engine
from atelier.rewards.scorers.quoted_spans import spans_similarity
from atelier.rewards.scorers.text import (
    Normalization,
    composed,
    normalize,
    reading_order,
    similarity,
)
from atelier.rewards.threads import side_by_side

logger = logging.getLogger(__name__)


class OcrScorer:
    """Similarity of the text read by PP-OCR to the target, in [0, 1].

    The rule is that of `text` or of `quoted_spans`. Details: `text` (lines joined), `lines`,
    `confidence` (mean over the lines, None if nothing was read) and `target`.
    """

    name = "ocr"
    direction: Direction = "higher_is_better"
    value_range = (0.0, 1.0)

    def __init__(self, config: OcrConfig) -> None:
        self.config = config

    @property
    def version(self) -> str:
        return ocr_engine.version(self.config.detect)

    def weights(self) -> Sequence[Path]:
        return list(ocr_engine.model_files(self.config.detect).values())

    def score(self, batch: ScoreBatch) -> Scores:
        """Read all images, so many at a time as there are workers: a trainer waits for the last
        batch of a step, and not for many small ones."""
        pairs = list(zip(batch.images, batch.metadata, strict=True))
        scored = side_by_side(
            lambda one: self._score_image(*one), pairs, self.config.workers, self.name
        )
        return Scores(self.name, [score for score, _ in scored], [seen for _, seen in scored])

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A word read right, the same word with a wrong target, and an empty image."""
        word = drawn_word("HELLO")
        images = [word, word, Image.new("RGB", word.size, "white")]
        targets = ["Hello" if self.config.rule == "target" else "HELLO", "HELP", "HELLO"]
        batch = ScoreBatch(
            images=images,
            prompts=[f'the word "{target}"' for target in targets],
            metadata=[{"target": target} for target in targets],
            group_ids=list(range(len(images))),
        )
        return batch, [1.0, 0.5, 0.0], 1e-6

    def _score_image(
        self, image: Image.Image, metadata: Mapping[str, Any]
    ) -> tuple[Score, Mapping[str, Any]]:
        target = metadata.get("target")
        if not isinstance(target, str) or not normalize(target, self._normalization):
            return Missing("the prompt's metadata has no target text"), {"target": target}
        try:
            lines = self._read(image)
        except ConfigError:
            raise
        except Exception as error:
            # One unreadable image must not cost the batch, nor look like an image without text.
            logger.exception("OCR failed on an image with target %r", target)
            return Missing(f"OCR failed: {type(error).__name__}: {error}"), {"target": target}
        texts = [line.text for line in lines]
        confidence = sum(line.confidence for line in lines) / len(lines) if lines else None
        return self._compare(metadata, texts), {
            "text": "".join(texts),
            "lines": texts,
            "confidence": confidence,
            "target": target,
        }

    def _compare(self, metadata: Mapping[str, Any], texts: Sequence[str]) -> Score:
        if self.config.rule == "target":
            return similarity(metadata["target"], texts, self._normalization)
        targets = metadata.get("targets") or [metadata["target"]]
        wanted, read = (
            [composed(one, self._normalization) for one in own] for own in (targets, texts)
        )
        found = spans_similarity(wanted, read, self.config.spans)
        if found is None:
            return Missing("nothing of the target text counts (rewards.ocr.spans.kept_signs)")
        return found

    def _read(self, image: Image.Image) -> list[ocr_engine.Line]:
        lines = ocr_engine.read_lines(image, self.config.detect)
        lines = [line for line in lines if line.confidence >= self.config.min_confidence]
        boxes = [line.box for line in lines if line.box is not None]
        if self.config.box_order == "reading" and len(boxes) == len(lines):
            lines = [lines[index] for index in reading_order(boxes)]
        return lines

    @property
    def _normalization(self) -> Normalization:
        return self.config.unicode_normalization
