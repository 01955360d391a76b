"""The probability of a token of a text, in each of the forms it can be meant. Pure.

| form          | distribution of a token                                              |
|---------------|----------------------------------------------------------------------|
| `TextForm`    | softmax(l / T) over the full vocabulary: the published one           |
| `DrawnForm`   | what was drawn from: the same within top-k and top-p, and what may be |

All of them are computed in float32, whatever the logits are held in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.policies.language.draws import cumulative


@dataclass(frozen=True, kw_only=True)
class TokenSampler:
    """How tokens are drawn.

    Attributes:
        temperature: T, above 0.
        top_k: only the k likeliest tokens; 0: all.
        top_p: only the likeliest tokens that together have probability top_p; 1: all.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError("temperature has to be above 0")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError("top_k has to be 0 or more, top_p in (0, 1]")


@dataclass(frozen=True)
class TextForm:
    """Log-probs of text tokens.

    Attributes:
        temperature: 1 is the published form.
        first_tokens: of which the first token was drawn, if that is to count; the published form
            takes it from the full vocabulary.
    """

    temperature: float = 1.0
    first_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class DrawnForm:
    """Log-probs of text tokens within what they were drawn from.

    Attributes:
        never: tokens that are not drawn.
    """

    sampler: TokenSampler
    never: tuple[int, ...] = ()


def kept(logits: Tensor, top_k: int, top_p: float) -> Tensor | None:
    """Which tokens [..., V] top-k, and then top-p, leave; None: all of them.

    Tokens as likely as the last one kept stay, so that ties do not depend on an order.
    """
    if not top_k and top_p == 1:
        return None
    lowest = torch.full_like(logits[..., :1], -torch.inf)
    if top_k and top_k < logits.shape[-1]:
        lowest = logits.topk(top_k).values[..., -1:]
    if top_p < 1:
        ordered = logits.masked_fill(logits < lowest, -torch.inf).sort(descending=True).values
        chances = ordered.double().softmax(-1)
        before = cumulative(chances) - chances
        # The last one that the likelier ones do not suffice without.
        count = (before < top_p).sum(-1, keepdim=True)
        lowest = torch.maximum(lowest, ordered.gather(-1, count - 1))
    return logits >= lowest


def within(
    logits: Tensor,
    sampler: TokenSampler,
    targets: Tensor | None = None,
    never: Sequence[int] = (),
) -> Tensor:
    """Logits over temperature [..., V], float32, -inf where the sampler never draws.

    Args:
        targets: [...] tokens that stay in any case: after an update, or where a token was not drawn
            by this model, it may be outside; its log-prob would be -inf and the ratio lost.
        never: tokens that are not drawn, however likely.
    """
    logits = logits.float() / sampler.temperature
    allowed = _without(logits.detach(), never)
    drawn = kept(allowed, sampler.top_k, sampler.top_p)
    if never:
        there = allowed > -torch.inf
        drawn = there if drawn is None else drawn & there
    if drawn is None:
        return logits
    if targets is not None:
        drawn = drawn.scatter(-1, targets[..., None], True)
    return logits.masked_fill(~drawn, -torch.inf)


def text_log_probs(
    logits: Tensor, targets: Tensor, form: TextForm | DrawnForm, start: int = 0
) -> Tensor:
    """Log-probs [B, n] of text tokens [B, n] by logits [B, n, V].

    Args:
        start: which of the segment's tokens comes first here.
    """
    if isinstance(form, DrawnForm):
        return picked(within(logits, form.sampler, targets, form.never), targets)
    logits = logits.float() / form.temperature
    if form.first_tokens and start == 0:
        first = only(logits[:, :1], form.first_tokens)
        logits = torch.cat([first, logits[:, 1:]], dim=1)
    return picked(logits, targets)


def only(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Logits [..., V] with -inf outside `tokens`."""
    allowed = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    allowed[list(tokens)] = True
    return logits.masked_fill(~allowed, -torch.inf)


def _without(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """The opposite."""
    if not tokens:
        return logits
    barred = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    barred[list(tokens)] = True
    return logits.masked_fill(barred, -torch.inf)


def picked(logits: Tensor, targets: Tensor) -> Tensor:
    """log_softmax(logits)[target], without a second tensor as large as the logits."""
    return logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(-1)
