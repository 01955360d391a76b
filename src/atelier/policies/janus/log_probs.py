"""The probability of an image token, in each of the forms it can be meant. Pure.

With l_c and l_u the logits of the conditional and the unconditional row, s the guidance scale and T
the temperature:

| form          | distribution of an image token                                               |
|---------------|------------------------------------------------------------------------------|
| `cfg_tempered`| softmax(l_c - (s-1)/s l_u) = softmax(guided logits / s): the published one    |
| `conditional` | softmax(l_c)                                                                 |
| `sampler`     | what was drawn from: softmax(guided logits / T) within its top-k and top-p    |

All of them are computed in float32, whatever the logits are held in. Of text tokens, see
policies.language.log_probs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from atelier.policies.language.log_probs import TextForm, TokenSampler, picked, within

FormName = Literal["cfg_tempered", "conditional", "sampler"]


@dataclass(frozen=True)
class Sampler(TokenSampler):
    """How tokens are drawn.

    Attributes:
        guidance_scale: s of classifier-free guidance; 1: without an unconditional row.
    """

    guidance_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.guidance_scale <= 0:
            raise ValueError("guidance_scale has to be above 0")

    @property
    def guided(self) -> bool:
        """Whether it needs an unconditional row."""
        return self.guidance_scale != 1


@dataclass(frozen=True)
class ImageForm:
    """Log-probs of image tokens. `sampler` is what they were drawn with."""

    name: FormName = "cfg_tempered"
    sampler: Sampler = Sampler()


Form = ImageForm | TextForm


def is_guided(form: Form) -> bool:
    """Whether it needs an unconditional row; text has none."""
    return isinstance(form, ImageForm) and form.name != "conditional" and form.sampler.guided


def guided_logits(conditional: Tensor, unconditional: Tensor | None, scale: float) -> Tensor:
    """l_u + s (l_c - l_u), float32; the conditional ones where there are no others."""
    if unconditional is None:
        return conditional.float()
    without = unconditional.float()
    return without + scale * (conditional.float() - without)


def sampler_logits(
    conditional: Tensor, unconditional: Tensor | None, sampler: Sampler, targets: Tensor | None
) -> Tensor:
    """Guided logits over temperature [..., V], -inf where the sampler never draws.

    Args:
        targets: [...] tokens that stay in any case, see policies.language.log_probs.within.
    """
    logits = guided_logits(conditional, unconditional, sampler.guidance_scale)
    return within(logits, sampler, targets)


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
