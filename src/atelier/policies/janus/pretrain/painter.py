"""The model at work: what it draws after contexts, and what it says about images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import JanusForConditionalGeneration

from atelier.data.keys import key
from atelier.data.verdicts import NO, YES
from atelier.policies.janus.conversation import Context, Conversation
from atelier.policies.janus.log_probs import Sampler
from atelier.policies.janus.module import JanusModule
from atelier.policies.janus.pretrain import network, vq
from atelier.policies.janus.pretrain.sequences import Remembering
from atelier.policies.janus.rows import Drawn, Rows, Seen, stack
from atelier.policies.janus.sampling import Generation, TextTokens

BATCH = 1024
ANSWER_TOKENS = 24


class Painter:
    """Draws and answers with a model, by its own sampling; each draw has its key."""

    def __init__(self, model: JanusForConditionalGeneration, tokenizer: Any) -> None:
        self.model, self._tokenizer = model, tokenizer
        module = JanusModule(model)
        self.conversation = Conversation(Remembering(tokenizer), module.image_tokens)
        self._generation = Generation(module)
        self._device = model.lm_head.weight.device

    def draw(
        self,
        contexts: Sequence[Context],
        guidance_scale: float,
        seed: int,
        given: Tensor | None = None,
    ) -> Tensor:
        """Codes [N, tokens] drawn after contexts, at temperature 1.

        Args:
            given: codes [N, tokens] of the image in each context, where there is one.
        """
        sampler = Sampler(guidance_scale=guidance_scale)
        keys = [key("tiny-janus draw", seed, index) for index in range(len(contexts))]
        found = []
        for start in range(0, len(contexts), BATCH):
            part = slice(start, start + BATCH)
            images: list[list[Drawn]] = [[] for _ in contexts[part]]
            if given is not None:
                images = [[Drawn(own.long())] for own in given[part]]
            rows = self._rows(contexts[part], images)
            found.append(self._generation.images(rows, keys[part], sampler).codes)
        return torch.cat(found)

    def images(self, codes: Tensor) -> NDArray[np.uint8]:
        """uint8 [N, H, W, 3] of codes."""
        images: NDArray[np.uint8] = vq.decode(self.model.model.vqmodel, codes).cpu().numpy()
        return images

    def says_yes(self, contexts: Sequence[Context], pictures: NDArray[np.uint8]) -> list[bool]:
        """Whether it answers Yes rather than No about the picture in each context."""
        yes, no = (self._tokenizer.convert_tokens_to_ids(word) for word in (YES, NO))
        found: list[bool] = []
        for rows in self._seeing(contexts, pictures):
            first = self._text(rows, 1, first_tokens=(yes, no)).first
            found += (first[:, 0] > first[:, 1]).tolist()
        return found

    def says(self, contexts: Sequence[Context], pictures: NDArray[np.uint8]) -> list[str]:
        """The likeliest answer about the picture in each context, token by token."""
        said: list[str] = []
        for rows in self._seeing(contexts, pictures):
            written = self._text(rows, ANSWER_TOKENS, sampler=Sampler(top_k=1))
            for tokens, own in zip(written.tokens, written.mask & ~written.ended, strict=True):
                said.append(self._tokenizer.decode(tokens[own].tolist()))
        return said

    def words(self, text: str) -> list[int]:
        """Its tokens."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _text(self, rows: Rows, limit: int, **options: Any) -> TextTokens:
        keys = [0] * len(rows)  # the likeliest token, whatever is drawn
        eos, pad = self.conversation.eos, self.conversation.pad
        return self._generation.text(rows, keys, limit, eos, pad, **options)

    def _seeing(self, contexts: Sequence[Context], pictures: NDArray[np.uint8]) -> Iterator[Rows]:
        for start in range(0, len(contexts), BATCH):
            part = slice(start, start + BATCH)
            with torch.no_grad():
                seen = network.look(self.model, torch.from_numpy(pictures[part]).to(self._device))
            yield self._rows(contexts[part], [[Seen(features)] for features in seen])

    def _rows(self, contexts: Sequence[Context], images: Sequence[Sequence[Drawn | Seen]]) -> Rows:
        """As reinforcement learning has them: an answer's EOS is hidden from what follows it."""
        hidden = (self.conversation.eos,)
        return stack(contexts, images, self.conversation.pad, hidden).to(self._device)
