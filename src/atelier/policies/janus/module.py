"""What is trained: a Janus model whose one forward pass gives log-probs, lookups of embeddings
included. Sampling uses the other methods, without gradients.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import JanusForConditionalGeneration
from transformers.models.llama.modeling_llama import LlamaModel

from atelier.policies.janus.attention import for_implementation, positions, visible
from atelier.policies.janus.conversation import IMAGE_SLOT
from atelier.policies.janus.log_probs import Form, ImageForm, image_log_probs, is_guided
from atelier.policies.janus.rows import SEEN_SLOT, Rows
from atelier.policies.language.log_probs import text_log_probs
from atelier.policies.language.module import LanguageModule
from atelier.policies.language.recomputation import in_chunks, recomputing

Kind = Literal["image", "text"]
FROZEN = ("vision_model", "aligner", "vqmodel")

# The library has renamed the argument, and will drop the old name.
CACHE_ARGUMENT = (
    "cache" if "cache" in inspect.signature(LlamaModel.forward).parameters else ("past_key_values")
)


@dataclass(frozen=True)
class Segment:
    """What was generated after B contexts, and the form of its log-probs.

    Attributes:
        targets: [B, N] int64: image codes, or text tokens filled up on the right.
        form: also says which head the tokens are of.
        constant_context: no gradient into the embeddings of the context.
    """

    rows: Rows
    targets: Tensor
    form: Form
    constant_context: bool = False

    @property
    def kind(self) -> Kind:
        return "image" if isinstance(self.form, ImageForm) else "text"


class JanusModule(LanguageModule):
    """A JanusForConditionalGeneration."""

    held_as: ClassVar[str] = "janus"
    janus: JanusForConditionalGeneration

    def frozen_parts(self) -> dict[str, nn.Module]:
        """What sees images, and the image tokenizer."""
        return {name: getattr(self.janus.model, name) for name in FROZEN}

    @property
    def image_tokens(self) -> int:
        """Tokens of an image."""
        return int(self.janus.config.vision_config.num_image_tokens)

    # Replay ------------------------------------------------------------------------------------

    def forward(self, segment: Segment) -> Tensor:
        """Teacher-forced log-probs [B, N] of a segment's targets, float32.

        The token at place t is predicted at place t - 1, the first one by the end of the context.
        """
        rows, targets, form = segment.rows, segment.targets, segment.form
        guided = is_guided(form)
        context = self.embed(rows, guided)
        if segment.constant_context:
            context = context.detach()
        written = self.embed_tokens(targets[:, :-1], segment.kind)
        mask, padding = rows.mask, rows.padding
        seen = torch.cat([mask, mask.new_ones(written.shape[:2])], dim=1)
        if guided:
            written, seen, padding = (twice(one) for one in (written, seen, padding))
        hidden = self._hidden(torch.cat([context, written], dim=1), seen, padding)
        log_probs = self._log_probs(hidden[:, -targets.shape[1] :], targets, form)
        return log_probs + self._presence(segment.kind)

    def _hidden(self, embeddings: Tensor, seen: Tensor, padding: Tensor) -> Tensor:
        """Hidden states of whole sequences [R, S, D]."""
        length = embeddings.shape[1]
        # Without a mask attention is plainly causal, for which there are faster kernels.
        mask = None if bool(seen.all()) else visible(seen, 0, length)
        with recomputing(self.language_model, self._checkpointing):
            return self.hidden(embeddings, mask, positions(padding, 0, length))

    def _log_probs(self, hidden: Tensor, targets: Tensor, form: Form) -> Tensor:
        """A chunk of tokens after the other."""
        chunk = partial(_chunk, self, hidden, targets, form)
        return in_chunks(chunk, targets.shape[1], self._logits_chunk)

    def _presence(self, kind: Kind) -> Tensor:
        """Zero, with a gradient of zero for what only segments of the other kind train.

        Engines that average gradients over ranks wait for every trained parameter.
        """
        device = self.language_model.embed_tokens.weight.device
        other: Kind = "text" if kind == "image" else "image"
        if not torch.is_grad_enabled() or not self._trains(other):
            return torch.zeros((), device=device)
        token = torch.zeros((1, 1), dtype=torch.long, device=device)
        return 0 * self.logits(self.embed_tokens(token, other), other).float().sum()

    def _trains(self, kind: Kind) -> bool:
        inner = self.janus.model
        parts: tuple[nn.Module, ...] = (inner.language_model.embed_tokens, self.janus.lm_head)
        if kind == "image":
            parts = (inner.generation_embeddings, inner.generation_aligner, inner.generation_head)
        return any(one.requires_grad for part in parts for one in part.parameters())

    # Parts -------------------------------------------------------------------------------------

    def embed(self, rows: Rows, guided: bool) -> Tensor:
        """Embeddings of contexts [R, L, D]: B rows, after them B unconditional ones if guided."""
        tokens = torch.cat([rows.tokens, rows.null_tokens]) if guided else rows.tokens
        embeddings = self.language_model.embed_tokens(tokens.clamp(min=0))
        if rows.codes is not None:
            drawn = self.embed_tokens(rows.codes, "image")
            embeddings = _pasted(embeddings, tokens == IMAGE_SLOT, drawn, guided)
        if rows.features is not None:
            embeddings = _pasted(embeddings, tokens == SEEN_SLOT, rows.features, guided)
        return embeddings

    def embed_tokens(self, tokens: Tensor, kind: Kind) -> Tensor:
        """[..., D] of text tokens or image codes [...], in the dtype of the text's table.

        Under autocast the aligner gives 16 bits and the table does not; the sum that all layers add
        to has to begin in one dtype, in sampling and in replay.
        """
        table = self.language_model.embed_tokens
        if kind == "text":
            return table(tokens)
        return self.janus.prepare_embeddings_for_image_generation(tokens).to(table.weight.dtype)

    def hidden(
        self, embeddings: Tensor, mask: Tensor | None, position: Tensor, cache: Any = None
    ) -> Tensor:
        """Last hidden states [R, S, D] of embeddings, after what `cache` has."""
        if mask is not None:
            implementation = self.language_model.config._attn_implementation
            mask = for_implementation(mask, implementation)
        output = self.language_model(
            inputs_embeds=embeddings,
            attention_mask=mask,
            position_ids=position,
            use_cache=cache is not None,
            **{CACHE_ARGUMENT: cache},
        )
        return output.last_hidden_state

    def logits(self, hidden: Tensor, kind: Kind) -> Tensor:
        """[..., V] over image codes, or over the text vocabulary."""
        if kind == "text":
            return self.janus.lm_head(hidden)
        return self.janus.model.generation_head(hidden)


def twice(rows: Tensor) -> Tensor:
    """Rows for the conditional and for the unconditional half."""
    return torch.cat([rows, rows])


def _pasted(embeddings: Tensor, slots: Tensor, images: Tensor, guided: bool) -> Tensor:
    images = twice(images) if guided else images
    return embeddings.masked_scatter(slots[..., None], images.to(embeddings.dtype))


def _chunk(module: JanusModule, hidden: Tensor, targets: Tensor, form: Form, part: slice) -> Tensor:
    """Log-probs of some of the targets, by their rows' logits."""
    hidden, targets = hidden[:, part], targets[:, part]
    if not isinstance(form, ImageForm):
        return text_log_probs(module.logits(hidden, "text"), targets, form, part.start)
    logits = module.logits(hidden, "image")
    conditional, unconditional = logits.chunk(2) if is_guided(form) else (logits, None)
    return image_log_probs(conditional, unconditional, targets, form)
