"""A judge in this process: any vision-language model that transformers loads, asked yes or no.

P(yes) is read from the distribution of the first token of the answer: the probability of yes over
that of yes and no, casings and a leading space merged (spec janus 6).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedTokenizerBase

from atelier.errors import ConfigError
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question

YES = ("yes", "Yes", "YES")
NO = ("no", "No", "NO")
_UNANSWERABLE = "a judge in this process answers yes or no only"


class LocalJudge:
    """A model that answers questions about images.

    Args:
        path: directory or hub id of the checkpoint.
        device: such as `cpu` or `cuda:0`; auto: a GPU where there is one.
        dtype: what it computes in; auto: the checkpoint's own, but never 16 bit on a CPU.

    Raises:
        ConfigError: nothing there that can be loaded, or its vocabulary has no yes or no.
    """

    def __init__(self, path: str | Path, device: str = "auto", dtype: str = "auto") -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self._processor: Any = AutoProcessor.from_pretrained(path)
            model: Any = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype)
        except (OSError, ValueError) as error:
            raise ConfigError(f"judge {path}: cannot be loaded: {error}") from error
        if device == "cpu" and dtype == "auto":
            model = model.float()  # half precision is slow there, and rounds more
        self._alone = threading.Lock()
        self._model = model.to(device).eval()
        self._device = torch.device(device)
        self._yes, self._no = (
            first_tokens(self._processor.tokenizer, words) for words in (YES, NO)
        )
        if not self._yes or not self._no:
            raise ConfigError(f"judge {path}: yes or no is no single token of its vocabulary")

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """The answers, in the order of the questions; missing where it cannot give them.

        Any number of threads may ask; one is answered at a time.
        """
        answers = [Answer(missing=_UNANSWERABLE)] * len(questions)
        places = [n for n, one in enumerate(questions) if isinstance(one.form, YesNoForm)]
        asked = [questions[place] for place in places]
        with self._alone:
            found = self.p_yes(
                [[image.convert("RGB") for image in one.images] for one in asked],
                [one.prompt for one in asked],
            )
        for place, p_yes in zip(places, found, strict=True):
            answers[place] = _answer(p_yes)
        return answers

    def close(self) -> None:
        """Nothing to give back before the process ends."""

    @torch.inference_mode()
    def p_yes(
        self, images: Sequence[Sequence[Image]], questions: Sequence[str], batch: int = 32
    ) -> list[float]:
        """Probability of yes in [0, 1] for each question about its images, in their order.

        NaN where neither yes nor no has any probability.
        """
        found: list[float] = []
        for start in range(0, len(questions), batch):
            asked = slice(start, start + batch)
            found += self._ask(images[asked], questions[asked]).tolist()
        return found

    def _ask(self, images: Sequence[Sequence[Image]], questions: Sequence[str]) -> Tensor:
        chats = [
            [{"role": "user", "content": [*({"type": "image", "image": one} for one in shown),
                                          {"type": "text", "text": question}]}]
            for shown, question in zip(images, questions, strict=True)
        ]  # fmt: skip
        inputs = self._processor.apply_chat_template(
            chats,
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            processor_kwargs={"padding": True, "padding_side": "left", "return_tensors": "pt"},
        ).to(self._device)
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(self._model.dtype)
        logits = self._model(**inputs, logits_to_keep=1).logits[:, -1].float()
        chances = logits.softmax(dim=-1)
        yes, no = chances[:, self._yes].sum(dim=-1), chances[:, self._no].sum(dim=-1)
        return yes / (yes + no)


def _answer(p_yes: float) -> Answer:
    if math.isnan(p_yes):
        return Answer(missing="neither yes nor no has any probability")
    return Answer({"p_yes": p_yes}, (p_yes,), measured=1)


def first_tokens(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[int]:
    """Ids of the words that are one token, with and without a space before them."""
    spelled = (
        tokenizer.encode(space + word, add_special_tokens=False)
        for word in words
        for space in ("", " ")
    )
    return sorted({ids[0] for ids in spelled if len(ids) == 1})
