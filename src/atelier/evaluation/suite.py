"""What a suite is: a way to score held-out images. What it asks for is said in requests.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.evaluation.image_statistics import image_statistics
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.rewards.base import ScoreBatch
from atelier.rewards.images import pil_images

Images = NDArray[np.uint8]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Scored:
    """The images, scored.

    Attributes:
        rows: one an image, in their order; made by `row`.
        reader: what scored, with its version: other versions do not compare.
        headline: the metric a reader wants first.
        image_score: the column that says how good one image is; None there is a missing score.
        metrics: columns whose means are metrics.
    """

    rows: Rows
    reader: str
    headline: str
    image_score: str
    metrics: Sequence[str]


@dataclass(frozen=True)
class Suite:
    """One way to score held-out images.

    Attributes:
        score: takes uint8 [N, H, W, 3], what each image was asked for, the section `evaluation` and
            the judge that it names; None where it names none.
        unit: what a mean is over (units.py).
        files: what else an evaluation's folder holds, by name (run_directory.SUITE_TABLES), of its
            rows and its summary.
    """

    name: str
    score: Callable[[Images, Sequence[ImageRequest], EvaluationConfig, SuiteJudge | None], Scored]
    unit: Literal["prompt", "pair", "tiered prompt", "pooled prompt"] = "prompt"
    files: Callable[[Rows, Mapping[str, Any]], Mapping[str, str]] = field(
        default=lambda rows, summary: {}
    )


def row(request: ImageRequest, image: NDArray[np.uint8]) -> dict[str, Any]:
    """What a row of every suite says: who the image is, and statistics that show hacked rewards."""
    prompt = request.prompt
    kept = (
        *("dataset", "target", "pair", "caption", "category"),
        *("tier", "discipline", "key", "level", "origin"),
    )
    return {
        "prompt_id": prompt.prompt_id,
        "dataset_id": prompt.dataset_id,
        "prompt": prompt.text,
        **{key: prompt.metadata[key] for key in kept if key in prompt.metadata},
        "number": request.number,
        "image": request.file,
        **image_statistics(image),
    }


def score_batch(images: Images, requests: Sequence[ImageRequest]) -> ScoreBatch:
    """What a reward is shown of uint8 [N, H, W, 3] where it scores held-out images."""
    prompts = [one.prompt for one in requests]
    return ScoreBatch(
        images=pil_images(images),
        prompts=[one.text for one in prompts],
        metadata=[one.metadata for one in prompts],
        group_ids=[one.prompt_id for one in prompts],
    )
