"""Prompts in tokens: what the policy writes after, and what its words are conditioned with.

There is one way from words and a source image to tokens, so that the language model writes after
exactly what the transformer is conditioned with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from atelier.data.prompts import Prompt
from atelier.policies.language.plain_text import require_plain
from atelier.policies.qwen.areas import Areas, fitted
from atelier.policies.qwen.templates import (
    END,
    IMAGE_PAD,
    NOTHING,
    Template,
    reads_image,
)

SQUARE = 32  # pixels of a side of the smallest image that is seen


@dataclass(frozen=True)
class ChatPrompt:
    """All that comes before a completion, in tokens.

    Attributes:
        ids: tokens, a source image as its placeholders.
        drop: of them from the start, which the transformer does not see.
        image: how many of them are placeholders.
        tail: how many of them at the end come after the user's words.
        pixels: [patches, values] float32 of the source image, as the vision tower takes it.
        grid: [1, 3] int64: frames, rows and columns of patches.
    """

    ids: tuple[int, ...]
    drop: int
    image: int
    tail: int
    pixels: Tensor | None = None
    grid: Tensor | None = None

    @property
    def kept(self) -> int:
        """Tokens whose hidden states the transformer sees."""
        return len(self.ids) - self.drop

    @property
    def user(self) -> int:
        """Of them those of the user's turn, without the image's placeholders."""
        return self.kept - self.image - self.tail


class Chat:
    """Makes tokens with a pipeline's own tokenizer and processor.

    Args:
        pipeline: QwenImagePipeline or QwenImageEditPlusPipeline.
        areas: as how many pixels the language model sees a source image.

    Raises:
        ConfigError: the template and the pipeline's vocabulary do not fit together.
    """

    def __init__(self, pipeline: Any, template: Template, areas: Areas | None = None) -> None:
        self.tokenizer = pipeline.tokenizer
        self.template = template
        self.drop = template.count_dropped(self.tokenizer)
        self.edits = reads_image(pipeline)
        self._processor: Any = pipeline.processor if self.edits else None
        self._images = pipeline.image_processor
        self._areas = areas or Areas()
        self._tail = len(self._tokens(template.after))
        self.end: int = self._id(END)
        self.image_pad: int = self._id(IMAGE_PAD)
        self.pad: int = self.tokenizer.pad_token_id
        self.marks: tuple[int, ...] = tuple(self.tokenizer.all_special_ids)

    def prompt(self, prompt: Prompt, source: Image.Image | None = None) -> ChatPrompt:
        """A prompt of a table.

        Args:
            source: what is to be edited, RGB.

        Raises:
            DataError: its text has marks of the language model.
        """
        require_plain(prompt.text, self.tokenizer, f"prompt {prompt.prompt_id}")
        return self.words(prompt.text, source)

    def nothing(self, source: Image.Image | None = None) -> ChatPrompt:
        """The negative prompt."""
        return self.words(NOTHING, source)

    def words(self, words: str, source: Image.Image | None = None) -> ChatPrompt:
        """Words that are known to have no marks.

        Raises:
            ValueError: there is a source image and the pipeline makes images of words alone, or the
                other way round.
        """
        if (source is not None) != self.edits:
            raise ValueError("an edit has a source image, and text to image has none")
        text = self.template.text(words)
        if source is None:
            return ChatPrompt(self._tokens(text), self.drop, 0, self._tail)
        read = self._processor(text=[text], images=[self.seen(source)], return_tensors="pt")
        ids = tuple(read["input_ids"][0].tolist())
        placeholders = ids.count(self.image_pad)
        pixels, grid = read["pixel_values"], read["image_grid_thw"]
        return ChatPrompt(ids, self.drop, placeholders, self._tail, pixels, grid)

    def placeholders(self) -> int:
        """Of a square source image, as many for every size; of text to image 0."""
        return self.nothing(Image.new("RGB", (SQUARE, SQUARE))).image if self.edits else 0

    def kept(self, words: str, placeholders: int) -> int:
        """`ChatPrompt.kept` of words beside a source image of so many placeholders, by counting:
        the template has one in the place of them all."""
        counted = len(self._tokens(self.template.text(words))) - self.drop
        return counted - 1 + placeholders if self.edits else counted

    def seen(self, source: Image.Image) -> Image.Image:
        """A source image in the size that the language model sees it in."""
        width, height = fitted(source.size, self._areas.condition)
        return self._images.resize(source, height, width)

    def text(self, completion: Sequence[int]) -> str:
        """A completion in words, without marks."""
        return str(self.tokenizer.decode(list(completion), skip_special_tokens=True)).strip()

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text)["input_ids"])

    def _id(self, mark: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(mark))
