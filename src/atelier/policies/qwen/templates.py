"""What stands around a user's words when Qwen-Image's language model reads them.

The transformer was trained on the hidden states of the user's words and of what follows, never on
those of the text before: how many tokens that text is, is counted, not known. Source: the Qwen
vision GRPO guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from atelier.config.sections.qwen import ConditioningConfig
from atelier.errors import ConfigError

BEGIN, END = "<|im_start|>", "<|im_end|>"
IMAGE_PAD = "<|image_pad|>"
PICTURE = f"Picture 1: <|vision_start|>{IMAGE_PAD}<|vision_end|>"
AFTER = f"{END}\n{BEGIN}assistant\n"
NOTHING = " "  # the negative prompt; also what an empty prompt is

PLANNING = (
    "You work beside a model that paints images from words. Before it begins, plan the picture and "
    "describe it: what is there and how many, its colours, shapes, sizes and materials, any words "
    "to be written on it, and where each thing stands."
)

_PUBLISHED_BEGIN = 151_644  # id of BEGIN in the vocabulary that the published counts are of


@dataclass(frozen=True)
class Template:
    """One turn of a conversation.

    Attributes:
        before: system block and user header, of which the transformer sees nothing.
        picture: what stands for a source image, before the user's words; empty: there is none.
        after: between the user's words and the completion.
        drop: tokens of `before` in the published vocabulary, where that is known.
    """

    name: str
    before: str
    picture: str = ""
    after: str = AFTER
    drop: int | None = None

    def text(self, words: str) -> str:
        """All that the language model reads before it writes.

        White space around the words is cut off: a leading line break would melt into the last token
        of `before`. A single space stands for no words at all.
        """
        return f"{self.before}{self.picture}{words.strip() or NOTHING}{self.after}"

    def count_dropped(self, tokenizer: Any) -> int:
        """Tokens of `before`.

        Raises:
            ConfigError: with the published vocabulary they are not as many as the transformer was
                trained with.
        """
        found = len(tokenizer(self.before)["input_ids"])
        is_published = tokenizer.convert_tokens_to_ids(BEGIN) == _PUBLISHED_BEGIN
        if is_published and self.drop not in (None, found):
            raise ConfigError(
                f"rollout.conditioning.template: {self.name} has {found} tokens before the user's "
                f"words, where the transformer was trained with {self.drop}: the model's tokenizer "
                "is not the published one; take the tokenizer directory of Qwen/Qwen-Image"
            )
        return found


def template_of(config: ConditioningConfig, pipeline: Any) -> Template:
    """The template that a configuration names, for a pipeline of text to image or of edits.

    Raises:
        ConfigError: the template is not for such a pipeline, or a system sentence has marks.
    """
    if config.template == "own":
        return _own(pipeline, config.system or "")
    return TEMPLATES[config.template](pipeline)


def stock(pipeline: Any) -> Template:
    """What a pipeline's transformer was trained with: 34 tokens before the words of text to image,
    64 before those of an edit."""
    before, _, after = pipeline.prompt_template_encode.partition("{}")
    drop = pipeline.prompt_template_encode_start_idx
    return Template("stock", before, _picture(pipeline), after, drop)


def planning(pipeline: Any) -> Template:
    """Asks for a plan of the picture; of text to image alone."""
    if reads_image(pipeline):
        raise ConfigError(
            "rollout.conditioning.template: planning asks for an image from words, and the model "
            "edits images; use stock, or own with rollout.conditioning.system"
        )
    return Template("planning", _before(PLANNING), drop=60)


TEMPLATES: dict[str, Callable[[Any], Template]] = {"stock": stock, "planning": planning}


def reads_image(pipeline: Any) -> bool:
    """Whether it edits a source image, which its language model is shown."""
    return "processor" in pipeline.components


def _own(pipeline: Any, system: str) -> Template:
    if mark := re.search(r"<\|\w+\|>", system):
        raise ConfigError(
            f"rollout.conditioning.system: has {mark[0]}; give the sentence alone, without the "
            "marks of a conversation"
        )
    return Template("own", _before(system.strip()), _picture(pipeline))


def _before(system: str) -> str:
    return f"{BEGIN}system\n{system}{END}\n{BEGIN}user\n"


def _picture(pipeline: Any) -> str:
    return PICTURE if reads_image(pipeline) else ""
