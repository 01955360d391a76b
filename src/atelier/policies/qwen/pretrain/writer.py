"""Training of the language model: riddles are answered as a reader who half knows them would."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen2_5_VLForConditionalGeneration

from atelier.data.keys import key
from atelier.judge_models.tiny.network import last_hidden
from atelier.policies.pretraining.compute import (
    adamw,
    autocast,
    cosine,
    decayed,
    follow,
    set_rate,
)
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.pretrain.conversations import Conversations, conversations
from atelier.policies.qwen.pretrain.options import WriterOptions
from atelier.policies.qwen.pretrain.words import (
    EDIT_FRAMES,
    FRAMES,
    Reader,
    asked,
    framed,
    solved,
)
from atelier.policies.qwen.pretrain.world import Cases

LOOK = ("what is in the picture?", "describe the picture", "what do you see here?")
UNASKED = -100  # no loss there


@dataclass(frozen=True)
class Lessons:
    """Conversations, and the case [N] that each is about."""

    conversations: Conversations
    case: Tensor


def lessons(chat: Chat, cases: Cases, options: WriterOptions) -> Lessons:
    """Of each case some readings; of edits a share also tells what the source holds."""
    frames = EDIT_FRAMES if chat.edits else FRAMES
    words: list[str] = []
    completions: list[str | None] = []
    case = []
    for index, plain in enumerate(cases.plain):
        rng = random.Random(key("tiny-qwen lessons", options.seed, index))
        reader = Reader(options.known, rng)
        for _ in range(options.readings):
            if chat.edits and rng.random() < options.looking:
                words.append(rng.choice(LOOK))
                completions.append(cases.seen[index])
            else:
                words.append(asked(plain, rng))
                completions.append(framed(solved(words[-1], reader), frames, rng))
            case.append(index)
    return Lessons(conversations(chat, words, completions), torch.tensor(case))


class WriterTrainer:
    """Learns in steps; `average` is the moving average of the weights.

    Beside the next token the hidden states have to tell the last one that was written, by a head
    that is not kept: the transformer, which sees nothing else, has to read what was written.
    """

    def __init__(
        self,
        model: Qwen2_5_VLForConditionalGeneration,
        taught: Lessons,
        sources: Tensor | None,
        options: WriterOptions,
    ) -> None:
        self.model = model.train().requires_grad_(True)
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.step = 0
        self._sources, self._options = sources, options
        self._taught = taught
        device = options.device
        width, vocabulary = model.lm_head.weight.shape[::-1]
        self._echo = nn.Linear(width, vocabulary, bias=False).to(device)
        self._generator = torch.Generator(device).manual_seed(options.seed)
        self._trained = [*model.parameters(), *self._echo.parameters()]
        groups = decayed(self._trained, options.weight_decay)
        self._optimizer = adamw(groups, (0.9, 0.98), torch.device(device))

    def train_step(self, done: float) -> dict[str, Tensor]:
        """One update; the parts of the loss, not synchronised."""
        options = self._options
        warm = min(1.0, (self.step + 1) / options.warmup_steps)
        set_rate(self._optimizer, options.learning_rate * warm * cosine(done))
        parts = self._losses()
        loss = parts["text"] + options.echo * parts["echo"]
        loss.backward()
        nn.utils.clip_grad_norm_(self._trained, options.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        follow(self.average.parameters(), self.model.parameters(), options.ema_decay, self.step)
        return {name: value.detach() for name, value in parts.items()}

    def _losses(self) -> dict[str, Tensor]:
        taught = self._taught.conversations
        where: dict[str, Any] = {"generator": self._generator, "device": self._options.device}
        rows = torch.randint(len(taught), (self._options.batch,), **where)
        tokens, begin, end = taught.tokens[rows].long(), taught.begin[rows], taught.end[rows]
        images = None if self._sources is None else self._sources[self._taught.case[rows]]
        place = torch.arange(tokens.shape[1], device=tokens.device)
        written = (begin[:, None] <= place) & (place < end[:, None])
        labels = tokens.masked_fill(~written, UNASKED)
        with autocast(tokens):
            hidden = last_hidden(self.model, tokens, images, taught.image)
            following = self.model.lm_head(hidden[:, :-1]).float()
            echoed = self._echo(hidden).float()
        return {
            "text": _cross_entropy(following, labels[:, 1:]),
            "echo": _cross_entropy(echoed, labels),
        }


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=UNASKED)
