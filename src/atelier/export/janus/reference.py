"""The tokens an exported Janus must judge and draw as the trainer did.

    codes        int64 [N, T]          image tokens drawn by the trainer's policy, trained
    log_probs, base_log_probs, greedy  of those (language/reference.py), with guidance
    images       uint8 [N, H, W, 3]    what the codes show
    base_images  uint8 [N, H, W, 3]    what the policy drew by the same chances before training

Prompts, what the trainer read of them in tokens, and the guidance scale are JSON in the header.
Whatever a run trains, drawing, editing or introspection, it is drawing that is compared: weights
are what is exported, and any use of them all shows whether they arrived. Of edits there are also
what is edited (`sources`) and what follows an instruction (`wish`), for the model card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.evaluation.requests import evaluation_key
from atelier.export.language.reference import TokenReference
from atelier.policies.janus.conversation import Context
from atelier.policies.janus.log_probs import ImageForm
from atelier.policies.janus.module import Segment
from atelier.policies.janus.parts import Parts, stacked
from atelier.policies.janus.policy import JanusPolicy
from atelier.policies.janus.rows import stack
from atelier.training.weights import copies, put_weights

GUIDANCE = 5.0  # published; transformers draws images with guidance only


@dataclass(frozen=True)
class DrawingReference(TokenReference):
    """See the module. `tokens` are what the trainer read of each prompt; `call` holds
    guidance_scale."""

    codes: np.ndarray
    tokens: list[list[int]]
    wish: str | None = field(default=None, kw_only=True)


def make_reference(
    config: RunConfig, tensors: Mapping[str, Tensor], prompts: Sequence[Prompt], device: str
) -> DrawingReference:
    """What the trainer's policy draws for `prompts`, and how likely it was before and after.

    Prompts and chances are those of the evaluation, everything is computed in float32 (as the
    clean process does), and without guidance in the evaluation the published scale is taken.
    """
    policy = JanusPolicy.load(_exact(config), device)
    scale = config.evaluation.guidance_scale
    scale = scale if scale > 1 else GUIDANCE
    hand = _Hand(policy.tools, [prompt.text for prompt in prompts], scale)
    keys = [evaluation_key(config.evaluation.seed, one) for one in prompts]
    before = copies(policy.trainable())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        base_images = hand.decoded(hand.drawn(keys))
        put_weights(policy.trainable(), tensors)
        codes, greedy = hand.drawn(keys), hand.drawn(keys, greedy=True)
        images, log_probs = hand.decoded(codes), hand.log_probs(codes)
        put_weights(policy.trainable(), before)
        base_log_probs = hand.log_probs(codes)
    edits = config.rollout.kind == "edit"
    return DrawingReference(
        codes=codes.cpu().numpy(),
        log_probs=log_probs,
        base_log_probs=base_log_probs,
        greedy=greedy.cpu().numpy(),
        images=images,
        base_images=base_images,
        prompts=[prompt.text for prompt in prompts],
        tokens=[list(context.tokens) for context in hand.contexts],
        call={"guidance_scale": scale},
        sources=stacked(policy.tools.sources(prompts)) if edits else None,
        wish=config.rollout.editing.wish if edits else None,
    )


class _Hand:
    """Draws for some prompts, one after another: no row has padding."""

    def __init__(self, parts: Parts, prompts: Sequence[str], scale: float) -> None:
        self._parts = parts
        self._sampler = replace(parts.sampler, guidance_scale=scale)
        self.contexts: list[Context] = [parts.conversation.drawing(one) for one in prompts]
        pad = parts.conversation.pad
        self._rows = [stack([one], [[]], pad).to(parts.device) for one in self.contexts]

    def drawn(self, keys: Sequence[int], greedy: bool = False) -> Tensor:
        """Codes [N, T]."""
        sampler = replace(self._sampler, top_k=1) if greedy else self._sampler
        pairs = zip(self._rows, keys, strict=True)
        return torch.cat(
            [self._parts.generation.images(rows, [key], sampler).codes for rows, key in pairs]
        )

    @torch.no_grad()
    def log_probs(self, codes: Tensor) -> np.ndarray:
        """Of codes [N, T] in the published form, float32 [N, T]."""
        form = ImageForm("cfg_tempered", self._sampler)
        found = [
            self._parts.module(Segment(rows, row[None], form))
            for rows, row in zip(self._rows, codes, strict=True)
        ]
        return torch.cat(found).float().cpu().numpy()

    def decoded(self, codes: Tensor) -> np.ndarray:
        return self._parts.pixels.decode(codes)


def _exact(config: RunConfig) -> RunConfig:
    """The same model, all of it in float32 and step by step."""
    full = {"dtype": "float32", "base_dtype": "float32", "gradient_checkpointing": False}
    tokens = config.rollout.tokens.model_copy(update={"execution": "eager"})
    return config.model_copy(
        update={
            "policy": config.policy.model_copy(update=full),
            "rollout": config.rollout.model_copy(update={"tokens": tokens}),
        }
    )
