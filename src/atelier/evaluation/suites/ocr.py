"""Suite `ocr`: can the words of held-out prompts be read in the images?

Per image: `similarity` (the published reward), `exact` (nothing but the target was read), `gold`
(share of the scene's facts that an exact checker confirms; the metric no policy is trained on) and
image statistics that show reward hacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.rewards import OcrConfig
from atelier.evaluation.gold_columns import gold_columns
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.evaluation.suite import Images, Scored, Suite, row, score_batch
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.rewards.score_table import ScoreTable
from atelier.rewards.scorers.ocr import OcrScorer
from atelier.rewards.scorers.text import exact_match

REWARD = OcrScorer.name
METRICS = ("similarity", "exact", "gold", *NAMES)
BATCH = 16


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    _judge: SuiteJudge | None,
) -> Scored:
    """Read the images.

    Rows have text, confidence, similarity, exact, gold, gold_facts and missing besides. similarity
    and exact are None where OCR gave none, `missing` then says why; gold is None without a scene.

    Raises:
        ConfigError, Stopped: the reader fails its golden sample, see `RewardSet.preflight`.
    """
    table, version = _read(images, requests, config.ocr)
    rows = [
        {**row(request, images[index]), **_read_row(index, request, table, config.ocr)}
        | gold_columns(images[index], request.prompt)
        for index, request in enumerate(requests)
    ]
    return Scored(rows, version, "similarity", "similarity", METRICS)


SUITE = Suite("ocr", score)


def _read(
    images: Images, requests: Sequence[ImageRequest], config: OcrConfig
) -> tuple[ScoreTable, str]:
    """Read all images in `config.workers` threads; there is no deadline for held-out scores."""
    scorer = OcrScorer(config)
    with RewardSet([Reward(scorer)], float("inf")) as rewards:
        rewards.preflight()
        submissions = [
            rewards.submit(score_batch(images[at : at + BATCH], requests[at : at + BATCH]))
            for at in range(0, len(requests), BATCH)
        ]
        return rewards.collect(submissions), scorer.version


def _read_row(
    index: int, request: ImageRequest, table: ScoreTable, config: OcrConfig
) -> dict[str, Any]:
    seen = table.details[REWARD][index]
    valid = bool(table.valid[index])
    exact = valid and exact_match(seen["target"], seen["lines"], config.unicode_normalization)
    return {
        "target": request.prompt.metadata.get("target"),
        "text": seen.get("text"),
        "confidence": seen.get("confidence"),
        "similarity": round(float(table.values[REWARD][index]), 6) if valid else None,
        "exact": float(exact) if valid else None,
        "missing": table.reasons[index],
    }
