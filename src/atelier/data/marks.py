"""Marks of a language model in prompts and captions: they would end the user's turn, or stand for
an image that is not there."""

from __future__ import annotations

from collections.abc import Iterable

from atelier.data.prompts import Prompt
from atelier.errors import DataError
from atelier.legible import legible_value

# Those that Qwen2.5-VL's tokenizer calls special. Whoever loads it refuses all that it has; these
# are known before there is a model.
QWEN = tuple(
    f"<|{name}|>"
    for name in (
        *("endoftext", "im_start", "im_end", "vision_start", "vision_end", "vision_pad"),
        *("image_pad", "video_pad", "object_ref_start", "object_ref_end"),
        *("box_start", "box_end", "quad_start", "quad_end"),
    )
)


def require_unmarked(prompts: Iterable[Prompt], what: str) -> None:
    """Check that no text has a mark of Qwen2.5-VL.

    Args:
        what: the prompts are, such as "training prompt".

    Raises:
        DataError: naming the first prompt that has one.
    """
    for one in prompts:
        if mark := next((mark for mark in QWEN if mark in one.text), None):
            dataset = one.metadata.get("dataset")
            of = f" of data set {dataset}" if dataset else ""
            raise DataError(
                f"{what} {one.prompt_id}{of}: {legible_value(one.text)} has {mark}, which is a "
                "mark of the language model that reads it; take it out of the text"
            )
