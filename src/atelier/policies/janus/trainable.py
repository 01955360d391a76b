"""Which parameters of a Janus model are trained (spec janus 2)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from atelier.policies.janus.module import JanusModule
from atelier.policies.language.adapters import (
    PROJECTIONS,
    adapt,
    language_model_layers,
    require_frozen_parts,
)

FROZEN = ("vision_model", "aligner", "vqmodel")
# The linear layers between the language model and image codes.
_IMAGE_LAYERS = (
    r"generation_head\.(proj_out|vision_head)|generation_aligner\.(fc1|hidden_layers\.\d+)"
)


def train_fully(module: JanusModule, text: bool) -> None:
    """Train the language model, and what embeds and predicts image codes.

    Args:
        text: whether text segments are trained. Without them the text head gets no gradient, and is
            frozen unless it shares the embedding's weights.
    """
    module.requires_grad_(True)
    for part in frozen_parts(module).values():
        part.requires_grad_(False)
    head = module.janus.lm_head.weight
    if head is not module.language_model.embed_tokens.weight:
        head.requires_grad_(text)


def train_adapter(
    module: JanusModule,
    rank: int,
    alpha: int,
    projections: Sequence[str] = PROJECTIONS,
    image_layers: bool = False,
    seed: int | None = None,
) -> None:
    """Freeze the module, and put a low-rank adapter on its language model.

    Args:
        projections: names of the language model's linear layers.
        image_layers: adapt those of the image head and of the image codes' aligner too.
        seed: see policies.language.adapters.adapt.

    Raises:
        ValueError: the language model has no layer of such a name.
    """
    targets = language_model_layers(projections)
    if image_layers:
        targets = rf"{targets}|model\.({_IMAGE_LAYERS})"
    adapt(module.janus, targets, rank, alpha, seed)


def frozen_parts(module: JanusModule) -> dict[str, nn.Module]:
    """What sees images, and the image tokenizer."""
    return {name: getattr(module.janus.model, name) for name in FROZEN}


def require_frozen(module: JanusModule) -> int:
    """Prove that nothing trains the parts that see images, nor the image tokenizer.

    Returns:
        Parameters of the frozen parts.

    Raises:
        RuntimeError: a parameter of theirs is trained, or one of their modules is in training mode.
    """
    return require_frozen_parts(frozen_parts(module))
