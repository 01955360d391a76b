"""Which parameters of a Qwen2.5-VL are trained (spec qwen 1.7).

The vision tower is frozen in any case: gradients of text move it little, and what it shows of a
source image is what the frozen transformer was trained beside.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from atelier.policies.language.adapters import (
    adapt,
    language_model_layers,
    require_frozen_parts,
)
from atelier.policies.qwen.module import QwenModule


def train_fully(module: QwenModule) -> None:
    """Train the language model and its head."""
    module.requires_grad_(True)
    for part in frozen_parts(module).values():
        part.requires_grad_(False)


def train_adapter(
    module: QwenModule, rank: int, alpha: int, projections: Sequence[str], seed: int | None = None
) -> None:
    """Freeze the module, and put a low-rank adapter on its language model.

    Args:
        projections: names of the language model's linear layers.
        seed: see policies.language.adapters.adapt.

    Raises:
        ValueError: the language model has no layer of such a name.
    """
    adapt(module.encoder, language_model_layers(projections), rank, alpha, seed)


def frozen_parts(module: QwenModule) -> dict[str, nn.Module]:
    """What sees source images."""
    return {"visual": module.encoder.model.visual}


def require_frozen(module: QwenModule) -> int:
    """Prove that nothing trains the vision tower. See policies.language.adapters."""
    return require_frozen_parts(frozen_parts(module))
