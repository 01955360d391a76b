"""The probability of a token, in each of the forms it can be meant. Pure.

With l_c and l_u the logits of the conditional and the unconditional row, s the guidance scale and T
the temperature (spec janus 1.3, 2, 10.1):

| form          | distribution of an image token                                               |
|---------------|------------------------------------------------------------------------------|
| `cfg_tempered`| softmax(l_c - (s-1)/s l_u) = softmax(guided logits / s): the published one    |
| `conditional` | softmax(l_c)                                                                 |
| `sampler`     | what was drawn from: softmax(guided logits / T) within its top-k and top-p    |

All of them are computed in float32, whatever the logits are held in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atelier.policies.janus.draws import cumulative

FormName = Literal["cfg_tempered", "conditional", "sampler"]


@dataclass(frozen=True)
class Sampler:
    """How tokens are drawn.

    Attributes:
        guidance_scale: s of classifier-free guidance; 1: without an unconditional row.
        temperature: T, above 0.
        top_k: only the k likeliest tokens; 0: all.
        top_p: only the likeliest tokens that together have probability top_p; 1: all.
    """

    guidance_scale: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.guidance_scale <= 0 or self.temperature <= 0:
            raise ValueError("guidance_scale and temperature have to be above 0")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError("top_k has to be 0 or more, top_p in (0, 1]")

    @property
    def guided(self) -> bool:
        """Whether it needs an unconditional row."""
        return self.guidance_scale != 1


@dataclass(frozen=True)
class ImageForm:
    """Log-probs of image tokens. `sampler` is what they were drawn with."""

    name: FormName = "cfg_tempered"
    sampler: Sampler = Sampler()

    @property
    def guided(self) -> bool:
        """Whether it needs an unconditional row."""
        return self.name != "conditional" and self.sampler.guided


@dataclass(frozen=True)
class TextForm:
    """Log-probs of text tokens.

    Attributes:
        temperature: 1 is the published form.
        first_tokens: of which the first token was drawn, if that is to count; the published form
            takes it from the full vocabulary (spec janus 4.3).
    """

    temperature: float = 1.0
    first_tokens: tuple[int, ...] = ()
    guided: Literal[False] = False


Form = ImageForm | TextForm


def guided_logits(conditional: Tensor, unconditional: Tensor | None, scale: float) -> Tensor:
    """l_u + s (l_c - l_u), float32; the conditional ones where there are no others."""
    if unconditional is None:
        return conditional.float()
    without = unconditional.float()
    return without + scale * (conditional.float() - without)


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


def sampler_logits(
    conditional: Tensor, unconditional: Tensor | None, sampler: Sampler, targets: Tensor | None
) -> Tensor:
    """Guided logits over temperature [..., V], -inf where the sampler never draws.

    Args:
        targets: [...] tokens that stay in any case: after an update, or where a token was not drawn
            by this model, it may be outside; its log-prob would be -inf and the ratio lost.
    """
    logits = guided_logits(conditional, unconditional, sampler.guidance_scale)
    logits = logits / sampler.temperature
    within = kept(logits.detach(), sampler.top_k, sampler.top_p)
    if within is None:
        return logits
    if targets is not None:
        within = within.scatter(-1, targets[..., None], True)
    return logits.masked_fill(~within, -torch.inf)


def image_log_probs(
    conditional: Tensor, unconditional: Tensor | None, targets: Tensor, form: ImageForm
) -> Tensor:
    """Log-probs [...] of targets [...] by logits [..., V].

    `unconditional` is None where the form needs none.
    """
    if form.name == "sampler":
        return picked(sampler_logits(conditional, unconditional, form.sampler, targets), targets)
    if form.name == "conditional" or unconditional is None:
        return picked(conditional.float(), targets)
    scale = form.sampler.guidance_scale
    tempered = conditional.float() - (scale - 1) / scale * unconditional.float()
    return picked(tempered, targets)


def text_log_probs(logits: Tensor, targets: Tensor, form: TextForm, start: int = 0) -> Tensor:
    """Log-probs [B, n] of text tokens [B, n] by logits [B, n, V].

    Args:
        start: which of the segment's tokens comes first here.
    """
    logits = logits.float() / form.temperature
    if form.first_tokens and start == 0:
        first = only(logits[:, :1], form.first_tokens)
        logits = torch.cat([first, logits[:, 1:]], dim=1)
    return picked(logits, targets)


def only(logits: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Logits [..., V] with -inf outside `tokens`."""
    allowed = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    allowed[list(tokens)] = True
    return logits.masked_fill(~allowed, -torch.inf)


def picked(logits: Tensor, targets: Tensor) -> Tensor:
    """log_softmax(logits)[target], without a second tensor as large as the logits."""
    return logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(-1)
