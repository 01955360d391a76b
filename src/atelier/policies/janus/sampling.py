"""Image tokens with classifier-free guidance, and text, each sample by its own key.

Source: FocusDiff (images) and Janus-Pro-R1 (text).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.policies.janus.decoding import Decoder, Execution
from atelier.policies.janus.log_probs import (
    ImageForm,
    Sampler,
    image_log_probs,
    sampler_logits,
)
from atelier.policies.janus.module import JanusModule, Kind
from atelier.policies.janus.rows import Rows
from atelier.policies.language.draws import token_at, uniforms
from atelier.policies.language.log_probs import TextForm, only, text_log_probs

ROUNDING = 64  # places: contexts of nearly equal length share a compiled step


@dataclass(frozen=True)
class ImageTokens:
    """codes [B, N] int64 and their log-probs [B, N] float32, in the form asked for."""

    codes: Tensor
    log_probs: Tensor


@dataclass(frozen=True)
class TextTokens:
    """What was written until every row had ended, or the limit was reached: T tokens.

    Attributes:
        tokens: [B, T] int64, `pad` after a row's EOS.
        log_probs: [B, T] float32, 0 on padding.
        mask: [B, T] bool: a row's own tokens, without padding.
        ended: [B, T] bool: where a row's EOS is. Published training leaves it out.
        first: [B, k] probability of each permitted first token among them.
    """

    tokens: Tensor
    log_probs: Tensor
    mask: Tensor
    ended: Tensor
    first: Tensor


class Generation:
    """Samples from a module, without gradients and in its eval mode."""

    def __init__(
        self, module: JanusModule, execution: Execution = "eager", backend: str = "inductor"
    ) -> None:
        self._module = module
        self._execution, self._backend = execution, backend
        self._compiled: dict[tuple[int, Kind, bool, int], Decoder] = {}

    @torch.no_grad()
    def images(
        self,
        rows: Rows,
        keys: Sequence[int],
        sampler: Sampler,
        form: ImageForm | None = None,
    ) -> ImageTokens:
        """An image's tokens after each context.

        Args:
            keys: one a row. A token is a function of its row's key, its place and the model.
            form: of the log-probs; default: the published one with this sampler.
        """
        form = form or ImageForm(sampler=sampler)
        count = self._module.image_tokens
        uniform = uniforms(keys, count).to(rows.tokens.device)
        decoder = self._decoder(rows, "image", sampler.guided, count)
        codes: list[Tensor] = []
        log_probs: list[Tensor] = []
        logits = decoder.begin(rows)
        for place in range(count):
            if place:
                logits = decoder.step(codes[-1])
            conditional, unconditional = logits.chunk(2) if sampler.guided else (logits, None)
            drawn_from = sampler_logits(conditional, unconditional, sampler, targets=None)
            codes.append(token_at(drawn_from, uniform[:, place]))
            log_probs.append(image_log_probs(conditional, unconditional, codes[-1], form))
        return ImageTokens(torch.stack(codes, dim=1), torch.stack(log_probs, dim=1))

    @torch.no_grad()
    def text(
        self,
        rows: Rows,
        keys: Sequence[int],
        limit: int,
        eos: int,
        pad: int,
        sampler: Sampler | None = None,
        first_tokens: tuple[int, ...] = (),
        form: TextForm | None = None,
    ) -> TextTokens:
        """Text after each context, without guidance.

        Args:
            limit: most tokens of a row, EOS included.
            first_tokens: what the first token is drawn from; none: the full vocabulary.
            form: of the log-probs; default: the published one, over the full vocabulary.
        """
        sampler, form = sampler or Sampler(), form or TextForm()
        if sampler.guided:
            raise ValueError("text is drawn without guidance: guidance_scale has to be 1")
        uniform = uniforms(keys, limit).to(rows.tokens.device)
        decoder = self._decoder(rows, "text", False, limit)
        going = rows.mask.new_ones(len(rows))
        tokens: list[Tensor] = []
        log_probs: list[Tensor] = []
        own: list[Tensor] = []
        logits = decoder.begin(rows)
        permitted = logits[:, list(first_tokens)].float()
        for place in range(limit):
            if place:
                logits = decoder.step(tokens[-1])
            allowed = only(logits, first_tokens) if first_tokens and not place else logits
            token = token_at(sampler_logits(allowed, None, sampler, None), uniform[:, place])
            tokens.append(torch.where(going, token, pad))
            found = text_log_probs(logits[:, None], tokens[-1][:, None], form, start=place)[:, 0]
            log_probs.append(torch.where(going, found, 0.0))
            own.append(going)
            going = going & (token != eos)
            if not bool(going.any()):
                break
        written, mask = torch.stack(tokens, dim=1), torch.stack(own, dim=1)
        return TextTokens(
            tokens=written,
            log_probs=torch.stack(log_probs, dim=1),
            mask=mask,
            ended=mask & (written == eos),
            first=permitted.softmax(-1),
        )

    def _decoder(self, rows: Rows, kind: Kind, guided: bool, new: int) -> Decoder:
        """A decoder with room for `new` tokens; a compiled one is kept for its shape."""
        places = rows.tokens.shape[1] + new - 1  # the last token is never fed
        if self._execution != "compile":
            return Decoder(self._module, kind, guided, places, self._execution)
        places = -(-places // ROUNDING) * ROUNDING
        shape = (len(rows), kind, guided, places)
        if shape not in self._compiled:
            self._compiled[shape] = Decoder(
                self._module, kind, guided, places, self._execution, self._backend
            )
        return self._compiled[shape]
