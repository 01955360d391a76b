"""What a judge says of an image, as columns of its row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.evaluation.suite import Images
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Question
from atelier.rewards.images import pil_images

UNASKED: dict[str, Any] = {"judge": None, "missing": None}


def judge_columns(
    images: Images, requests: Sequence[ImageRequest], question: str, judge: SuiteJudge
) -> list[dict[str, Any]]:
    """`judge`: P(yes) in [0, 1] to a question about the image, and `missing`: why there is none;
    one of both is None.

    Args:
        question: {prompt} in it is the image's own.

    Raises:
        Stopped: the judge answers nothing.
    """

    def questions() -> Iterator[Question]:
        for request, image in zip(requests, images, strict=True):
            text = question.replace("{prompt}", request.prompt.text)
            yield Question(text, YesNoForm(), pil_images(image[None]))

    return [
        {"judge": None, "missing": one} if isinstance(one, str) else {"judge": one, "missing": None}
        for one in judge.p_yes(questions())
    ]
