"""Suite `yes_no`: does a judge say that the image shows its prompt?

For prompts of any kind. An image's score is P(yes) of the judge to one question about it, as the
reward yes_no asks it.
"""

from __future__ import annotations

from collections.abc import Sequence

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.errors import DataError
from atelier.evaluation.gold_columns import gold_columns
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judge_columns import judge_columns
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.evaluation.suite import Images, Scored, Suite, row

METRICS = ("judge", "gold", *NAMES)


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    config: EvaluationConfig,
    judge: SuiteJudge | None,
) -> Scored:
    """Ask the judge. Rows have judge (None where it gave no answer, `missing` says why), and gold,
    strict and gold_facts (None without a scene).

    Raises:
        DataError: no judge is named.
        Stopped: the judge answers nothing.
    """
    if judge is None:
        raise DataError("evaluation.suite yes_no asks a judge: name one in evaluation.yes_no.judge")
    said = judge_columns(images, requests, config.yes_no.question, judge)
    rows = [
        row(request, image) | gold_columns(image, request.prompt) | words
        for request, image, words in zip(requests, images, said, strict=True)
    ]
    return Scored(rows, f"judge {judge.model}", "judge", "judge", METRICS)


SUITE = Suite("yes_no", score)
