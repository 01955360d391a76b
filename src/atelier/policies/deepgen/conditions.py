"""What images are painted from, of a batch of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atelier.policies.deepgen.transformer import References


@dataclass(frozen=True)
class Conditions:
    """Of B prompts, float32, on the policy's device.

    Attributes:
        words: the prompts.
        tokens: [B, L, D] as the connector makes them, or, where it is trained, the hidden states
            that it makes them of; padded on the right.
        pooled: [B, P]; None where the connector is trained.
        mask: [B, L] bool, which tokens are a row's own; None where all are.
        references: latents of the images that are edited.
        against: what guidance leads away from, where that is more than an empty prompt.
    """

    words: tuple[str, ...]
    tokens: Tensor
    pooled: Tensor | None
    mask: Tensor | None = None
    references: References | None = None
    against: Conditions | None = None

    def __len__(self) -> int:
        return len(self.words)

    def after(self, other: Conditions) -> Conditions:
        """The others' rows, and then these.

        Raises:
            ValueError: only one of the two has images that are edited, or pooled embeddings.
        """
        for name in ("references", "pooled"):
            if (getattr(self, name) is None) != (getattr(other, name) is None):
                raise ValueError(f"one of two batches of conditions has no {name}")
        length = max(one.tokens.shape[1] for one in (self, other))
        first, second = (one.widened(length) for one in (other, self))
        pooled = None
        if first.pooled is not None and second.pooled is not None:
            pooled = torch.cat([first.pooled, second.pooled])
        masks = [one.own() for one in (first, second)]
        references = None
        if first.references is not None and second.references is not None:
            references = [*first.references, *second.references]
        return Conditions(
            (*first.words, *second.words),
            torch.cat([first.tokens, second.tokens]),
            pooled,
            None if first.mask is None and second.mask is None else torch.cat(masks),
            references,
        )

    def rows(self, places: Sequence[int]) -> Conditions:
        """Some of them, in this order, maybe more than once."""
        at, told = [*places], self.references
        return Conditions(
            tuple(self.words[place] for place in at),
            self.tokens[at],
            None if self.pooled is None else self.pooled[at],
            None if self.mask is None else self.mask[at],
            None if told is None else [told[place] for place in at],
            None if self.against is None else self.against.rows(at),
        )

    def widened(self, length: int) -> Conditions:
        """The same with padding up to so many tokens."""
        more = length - self.tokens.shape[1]
        if not more:
            return self
        tokens = nn.functional.pad(self.tokens, (0, 0, 0, more))
        mask = nn.functional.pad(self.own(), (0, more))
        return Conditions(self.words, tokens, self.pooled, mask, self.references)

    def own(self) -> Tensor:
        """The mask, also where there is no padding."""
        if self.mask is not None:
            return self.mask
        return torch.ones(self.tokens.shape[:2], dtype=torch.bool, device=self.tokens.device)


def gathered(
    words: Sequence[str],
    tokens: Sequence[Tensor],
    pooled: Sequence[Tensor] | None,
    device: torch.device,
) -> Conditions:
    """A batch of rows.

    Args:
        tokens: each [length, D].
        pooled: each [P].
    """
    lengths = torch.tensor([len(one) for one in tokens])
    padded = nn.utils.rnn.pad_sequence([one.float() for one in tokens], batch_first=True)
    mask = torch.arange(padded.shape[1]) < lengths[:, None]
    return Conditions(
        tuple(words),
        padded.to(device),
        None if pooled is None else torch.stack(list(pooled)).float().to(device),
        None if bool(mask.all()) else mask.to(device),
    )
