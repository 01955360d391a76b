"""Suite `ocr`: can the words of held-out prompts be read in the images?

Per image: `similarity` (the published reward), `exact` (nothing but the target was read), `gold`
(share of the scene's facts that an exact checker confirms; the metric no policy is trained on) and
image statistics that show reward hacking.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atelier.config.rewards import OcrConfig
from atelier.config.schema import EvaluationConfig
from atelier.data import gold, scenes
from atelier.data.prompts import Prompt
from atelier.evaluation.files import read_images, write_results
from atelier.evaluation.image_statistics import NAMES, image_statistics
from atelier.evaluation.requests import ImageRequest, image_requests
from atelier.evaluation.results import Evaluation, summarize
from atelier.rewards.base import ScoreBatch
from atelier.rewards.images import pil_images
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.rewards.score_table import ScoreTable
from atelier.rewards.scorers.ocr import OcrScorer
from atelier.rewards.scorers.text import exact_match

SUITE = "ocr"
METRICS = ("similarity", "exact", "gold", *NAMES)
BATCH = 16


def evaluate(
    images: NDArray[np.uint8], prompts: Sequence[Prompt], config: EvaluationConfig
) -> Evaluation:
    """Score images uint8 [N, H, W, 3] against their prompts.

    Returns:
        Rows {prompt_id, dataset_id, prompt, target, image, text, confidence, similarity, exact,
        gold, gold_facts, dark_share, edge_density, color_entropy, missing}. similarity and exact
        are None where OCR gave none, `missing` then says why; gold is None without a scene.

    Raises:
        ValueError: not one image a prompt, or not uint8 [N, H, W, 3].
    """
    requests = image_requests(prompts, config)
    if len(images) != len(requests):
        raise ValueError(f"{len(images)} images, but the suite asks for {len(requests)}")
    table, version = _read(images, [one.prompt for one in requests], config.ocr)
    rows = [
        _row(index, images[index], request, table, config.ocr)
        for index, request in enumerate(requests)
    ]
    summary = {
        "suite": SUITE,
        "images": len(rows),
        "missing": sum(row["similarity"] is None for row in rows),
        "reader": version,
        "bootstrap_samples": config.bootstrap_samples,
        "metrics": summarize(rows, METRICS, config.bootstrap_samples),
    }
    return Evaluation(rows, summary)


def score_folder(folder: Path, prompts: Sequence[Prompt], config: EvaluationConfig) -> Evaluation:
    """Score the images of a folder, and write the results there.

    Raises:
        DataError: they are not exactly those that the suite asks for, or unreadable.
    """
    images = read_images(folder, [one.file for one in image_requests(prompts, config)])
    evaluation = evaluate(images, prompts, config)
    write_results(folder, evaluation, images)
    return evaluation


def _read(
    images: NDArray[np.uint8], prompts: Sequence[Prompt], config: OcrConfig
) -> tuple[ScoreTable, str]:
    """Read all images in `config.workers` threads; there is no deadline for held-out scores.

    Raises:
        ConfigError, Stopped: the reader fails its golden sample, see `RewardSet.preflight`.
    """
    scorer = OcrScorer(config)
    with RewardSet([Reward(scorer, workers=config.workers)], float("inf")) as rewards:
        rewards.preflight()
        submissions = [
            rewards.submit(_batch(images[start : start + BATCH], prompts[start : start + BATCH]))
            for start in range(0, len(prompts), BATCH)
        ]
        return rewards.collect(submissions), scorer.version


def _batch(images: NDArray[np.uint8], prompts: Sequence[Prompt]) -> ScoreBatch:
    return ScoreBatch(
        images=pil_images(images),
        prompts=[prompt.text for prompt in prompts],
        metadata=[prompt.metadata for prompt in prompts],
        group_ids=[prompt.prompt_id for prompt in prompts],
    )


def _row(
    index: int,
    image: NDArray[np.uint8],
    request: ImageRequest,
    table: ScoreTable,
    config: OcrConfig,
) -> dict[str, Any]:
    prompt = request.prompt
    seen = table.details[SUITE][index]
    valid = bool(table.valid[index])
    exact = valid and exact_match(seen["target"], seen["lines"], config.unicode_normalization)
    return {
        "prompt_id": prompt.prompt_id,
        "dataset_id": prompt.dataset_id,
        "prompt": prompt.text,
        "target": prompt.metadata.get("target"),
        "image": request.file,
        "text": seen.get("text"),
        "confidence": seen.get("confidence"),
        "similarity": round(float(table.values[SUITE][index]), 6) if valid else None,
        "exact": float(exact) if valid else None,
        **_gold(image, prompt),
        **image_statistics(image),
        "missing": table.reasons[index],
    }


def _gold(image: NDArray[np.uint8], prompt: Prompt) -> dict[str, Any]:
    """The exact check against the prompt's scene, where it has one."""
    scene = prompt.metadata.get("scene")
    if scene is None:
        return {"gold": None, "gold_facts": None}
    result = gold.check(image, scenes.from_dict(scene))
    return {"gold": float(result.score), "gold_facts": dict(result.facts)}
