"""A judge in this process: any vision-language model that transformers loads, asked yes or no.

P(yes) is read from the distribution of the first token of the answer: the probability of yes over
that of yes and no, casings and a leading space merged.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from PIL import Image
from torch import Tensor

from atelier.errors import ConfigError
from atelier.given_up import while_wanted
from atelier.judge.forms import YesNoForm
from atelier.judge.pictures import prepared
from atelier.judge.questions import Answer, Question
from atelier.judge_models.opening import (
    NO,
    YES,
    context_of,
    first_tokens,
    markers_of,
    opened,
)
from atelier.judge_models.qwen_vl import add_positions
from atelier.model_files import told

# Questions that are put together: many, since a GPU waits for small kernels, while their images
# have few pixels; a processor gains nothing by more than some.
BATCH, BATCH_ON_A_PROCESSOR = 256, 32
BATCH_PIXELS = 32 * 1024 * 1024
# What processors and models raise about a question that they cannot take. Anything else is a fault
# of ours, or of the device, and not of one question.
_REFUSALS = (ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, TemplateError)


@dataclass(frozen=True)
class Readied:
    """A question that can be put to the model, as far as it can be told without it."""

    images: Sequence[Image.Image]
    text: str


def batches(asked: Sequence[Readied], most: int) -> Iterator[Sequence[Readied]]:
    """Neighbours to be put together: at most so many, and with BATCH_PIXELS at most."""
    start = pixels = 0
    for place, one in enumerate(asked):
        own = sum(image.width * image.height for image in one.images)
        if place > start and (place - start == most or pixels + own > BATCH_PIXELS):
            yield asked[start:place]
            start, pixels = place, 0
        pixels += own
    if asked:
        yield asked[start:]


class LocalJudge:
    """A model that answers questions about images.

    Args:
        path: directory or hub id of the checkpoint.
        device: such as `cpu` or `cuda:0`; auto: a GPU where there is one.
        dtype: what it computes in; auto: the checkpoint's own, but never 16 bit on a CPU.

    Raises:
        ConfigError: nothing there that can be loaded, it is damaged, it cannot be asked about an
            image, or its vocabulary has no yes or no.
    """

    def __init__(self, path: str | Path, device: str = "auto", dtype: str = "auto") -> None:
        self._processor, self._model = opened(path, device, dtype)
        self._device: torch.device = self._model.device
        self._most = BATCH_ON_A_PROCESSOR if self._device.type == "cpu" else BATCH
        self._alone = threading.Lock()
        self._yes, self._no = (
            first_tokens(self._processor.tokenizer, words) for words in (YES, NO)
        )
        if not self._yes or not self._no:
            raise ConfigError(f"judge {path}: yes or no is no single token of its vocabulary")
        self._markers = markers_of(self._processor)
        self._context = context_of(self._model)
        self._require_sight(path)

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers, in the order of the questions; missing where it cannot give them.

        Any number of threads may ask; one is answered at a time.
        """
        found = [self._readied(one) for one in questions]
        asked = [one for one in found if isinstance(one, Readied)]
        answers: list[Answer] = []
        with self._alone:
            for batch in while_wanted(batches(asked, self._most)):
                answers += self._answers(batch)
        in_order = iter(answers)
        return [next(in_order) if isinstance(one, Readied) else one for one in found]

    def close(self) -> None:
        """Nothing to give back before the process ends."""

    def p_yes(
        self, images: Sequence[Sequence[Image.Image]], questions: Sequence[str]
    ) -> list[float]:
        """Probability of yes in [0, 1] for each question about its images, in their order.

        NaN where neither yes nor no has any probability. Raises what the model raises: `ask` is for
        questions that may be bad.
        """
        asked = [Readied(*one) for one in zip(images, questions, strict=True)]
        found: list[float] = []
        for batch in batches(asked, self._most):
            found += self._chances(self._inputs(batch))
        return found

    def _readied(self, question: Question) -> Readied | Answer:
        """A question with its pictures loaded; or why it cannot be asked, which no other question
        is to suffer for."""
        if not isinstance(question.form, YesNoForm):
            return Answer(missing="a judge in this process answers yes or no only")
        if problem := self._unreadable(question.prompt):
            return Answer(missing=problem)
        try:
            return Readied([prepared(one, None) for one in question.images], question.prompt)
        # Decoders raise what they trip over: OSError, ValueError, SyntaxError, struct.error, ...
        except Exception as error:
            return Answer(missing=f"an image cannot be read: {told(error)}")

    def _unreadable(self, text: str) -> str | None:
        """Why a text does not reach the model as the words that it is; None where it does.

        Markers would be taken for images or for the end of the question, and a prompt may come from
        anywhere; without them it would be another question.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return f"the question is no valid Unicode: {error}"
        marker = next((one for one in self._markers if one in text), None)
        return marker and f"the question has {marker!r}, which is no text for this judge"

    def _answers(self, asked: Sequence[Readied]) -> list[Answer]:
        """The answers of a batch; where it is refused, of its halves, so that the culprit alone has
        none."""
        try:
            return [_answer(p_yes) for p_yes in self._chances(self._inputs(asked))]
        except torch.AcceleratorError:
            raise  # the device is lost to this process
        except _REFUSALS as error:
            reason = f"the judge cannot be asked this: {told(error)}"
            # A GPU that others fill may have room later.
            for_now = isinstance(error, torch.OutOfMemoryError)
        # Outside the handler: the error holds on to the tensors of the batch.
        if len(asked) == 1:
            return [Answer(missing=reason, retryable=for_now)]
        middle = len(asked) // 2
        return self._answers(asked[:middle]) + self._answers(asked[middle:])

    def _inputs(self, asked: Sequence[Readied]) -> Any:
        """What the model takes, padded to the longest.

        Raises:
            ValueError: a question is longer than the model reads.
        """
        chats = [
            [{"role": "user", "content": [*({"type": "image", "image": one} for one in each.images),
                                          {"type": "text", "text": each.text}]}]
            for each in asked
        ]  # fmt: skip
        inputs = self._processor.apply_chat_template(
            chats,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            processor_kwargs={"padding": True, "padding_side": "left", "return_tensors": "pt"},
        )
        longest = int(inputs["attention_mask"].sum(dim=-1).max())
        if self._context is not None and longest > self._context:
            raise ValueError(f"it has {longest} tokens, and the model reads {self._context}")
        return inputs

    @torch.inference_mode()
    def _chances(self, inputs: Any) -> list[float]:
        """P(yes) of each question."""
        add_positions(self._model, inputs)
        inputs = inputs.to(self._device)
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(self._model.dtype)
        logits: Tensor = self._model(**inputs, logits_to_keep=1).logits[:, -1].float()
        chances = logits.softmax(dim=-1)
        yes, no = chances[:, self._yes].sum(dim=-1), chances[:, self._no].sum(dim=-1)
        found: list[float] = (yes / (yes + no)).tolist()
        return found

    def _require_sight(self, path: str | Path) -> None:
        """It can be asked about a picture, and the picture reaches it.

        Raises:
            ConfigError: it cannot, so no question would ever have an answer.
        """
        trial = Readied([Image.new("RGB", (64, 64), "red")], "Is it red?")
        try:
            inputs = self._inputs([trial])
            shown = any(
                isinstance(one, Tensor) and one.is_floating_point() for one in inputs.values()
            )
            self._chances(inputs)
        # Files that do not fit one another fail anywhere in the code of the model they name.
        except Exception as error:
            raise ConfigError(
                f"judge {path}: cannot be asked about an image: {told(error)}"
            ) from error
        if not shown:
            raise ConfigError(f"judge {path}: it takes no images, only text")


def _answer(p_yes: float) -> Answer:
    if math.isnan(p_yes):
        return Answer(missing="neither yes nor no has any probability")
    return Answer({"p_yes": p_yes}, (p_yes,), measured=1)
