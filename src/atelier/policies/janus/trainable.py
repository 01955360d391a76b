"""Which parameters of a Janus model are trained."""

from __future__ import annotations

from atelier.policies.janus.module import JanusModule
from atelier.policies.language import adapters


def train_fully(module: JanusModule, text: bool) -> None:
    """Train the language model, and what embeds and predicts image codes.

    Args:
        text: whether text segments are trained. Without them the text head gets no gradient, and is
            frozen unless it shares the embedding's weights.
    """
    adapters.train_fully(module)
    head = module.janus.lm_head.weight
    if head is not module.language_model.embed_tokens.weight:
        head.requires_grad_(text)
