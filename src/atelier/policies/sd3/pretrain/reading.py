"""How much of a word PP-OCR's recogniser reads from a whole image: MM-GRPO's reward.

A plain copy of the published formula, so that pre-training needs no reward service.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 16


def read_words(
    executor: Executor, images: NDArray[np.uint8], targets: Sequence[str]
) -> tuple[list[float], list[str]]:
    """Similarity in [0, 1] and recognised text of each image [N, H, W, 3]."""
    starts = range(0, len(images), CHUNK)
    jobs = [executor.submit(_recognise, images[start : start + CHUNK]) for start in starts]
    texts = [text for job in jobs for text in job.result()]
    return [similarity(text, target) for text, target in zip(texts, targets, strict=True)], texts


def similarity(text: str, target: str) -> float:
    """1 - min(Levenshtein, length)/length, case and spaces ignored; 1 where text holds target."""
    text, target = (value.lower().replace(" ", "") for value in (text, target))
    if target in text:
        return 1.0
    return 1 - min(_levenshtein(text, target), len(target)) / len(target)


def summary(scores: Sequence[float]) -> dict[str, float]:
    """Mean similarity and the share of images in which the whole word is read."""
    return {
        "similarity": round(float(np.mean(scores)), 4),
        "exact": round(float(np.mean([score == 1.0 for score in scores])), 4),
    }


def _levenshtein(left: str, right: str) -> int:
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        previous, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]


@lru_cache(maxsize=1)
def _engine() -> Any:
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.use_det": False,
            "Global.use_cls": False,
            "Global.log_level": "error",
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


def _recognise(images: NDArray[np.uint8]) -> list[str]:
    return ["".join(_engine()(image).txts or ()) for image in images]
