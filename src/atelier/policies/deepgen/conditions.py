"""What images are painted from, of a batch of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atelier.policies.deepgen.transformer import References
from atelier.policies.embedding_cache import Embedding
from atelier.transfer import to_device


@dataclass(frozen=True)
class Conditions:
    """Of B prompts, on the policy's device. Rows of equal prompts share what they are painted from:
    they become a batch where one is computed with.

    Attributes:
        words: the prompts.
        embeddings: of each, `tokens` [L, D] as the connector makes them and `pooled` [P]; or, where
            the connector is trained, `tokens` alone: the hidden states that it makes them of.
        references: latents of the images that are edited.
        against: what guidance leads away from, where that is more than an empty prompt.
    """

    words: tuple[str, ...]
    embeddings: tuple[Embedding, ...]
    references: References | None = None
    against: Conditions | None = None

    def __len__(self) -> int:
        return len(self.words)

    @property
    def tokens(self) -> Tensor:
        """[B, L, D] float32, padded on the right."""
        rows = [one["tokens"] for one in self.embeddings]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True).float()

    @property
    def pooled(self) -> Tensor | None:
        """[B, P] float32; None where the connector is trained."""
        if not self._are_pooled:
            return None
        return torch.stack([one["pooled"] for one in self.embeddings]).float()

    @property
    def mask(self) -> Tensor | None:
        """[B, L] bool, which tokens are a row's own; None where all are."""
        lengths = [len(one["tokens"]) for one in self.embeddings]
        if len(set(lengths)) == 1:
            return None
        own = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return to_device(own, self.embeddings[0]["tokens"].device)

    @property
    def _are_pooled(self) -> bool:
        return "pooled" in self.embeddings[0]

    def after(self, other: Conditions) -> Conditions:
        """The others' rows, and then these.

        Raises:
            ValueError: only one of the two has images that are edited, or pooled embeddings.
        """
        if (self.references is None) != (other.references is None):
            raise ValueError("one of two batches of conditions has no references")
        if self._are_pooled != other._are_pooled:
            raise ValueError("one of two batches of conditions has no pooled embeddings")
        references = None
        if self.references is not None and other.references is not None:
            references = [*other.references, *self.references]
        return Conditions(
            (*other.words, *self.words), (*other.embeddings, *self.embeddings), references
        )

    def rows(self, places: Sequence[int]) -> Conditions:
        """Some of them, in this order, maybe more than once."""
        told = self.references
        return Conditions(
            tuple(self.words[place] for place in places),
            tuple(self.embeddings[place] for place in places),
            None if told is None else [told[place] for place in places],
            None if self.against is None else self.against.rows(places),
        )
