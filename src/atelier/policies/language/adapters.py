"""Low-rank adapters on a language model, and which parameters of a module are trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from atelier.policies.language.module import LanguageModule

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def train_fully(module: LanguageModule) -> None:
    """Train all but what is never trained."""
    module.requires_grad_(True)
    for part in module.frozen_parts().values():
        part.requires_grad_(False)


def train_adapter(
    module: LanguageModule,
    rank: int,
    alpha: int,
    projections: Sequence[str] = PROJECTIONS,
    seed: int | None = None,
) -> None:
    """Freeze the module, and put a low-rank adapter on its language model: Gaussian A, zero B.

    Its parameters are float32 whatever the model is held in: a 16-bit weight would lose the small
    updates of AdamW.

    Args:
        projections: names of the language model's linear layers.
        seed: of A; None: the values do not matter.

    Raises:
        ValueError: the language model has no layer of such a name.
    """
    model: nn.Module = module.model
    model.requires_grad_(False)
    config = PeftLoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=language_model_layers(projections),
        init_lora_weights="gaussian",
        lora_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    model.eval()


def language_model_layers(names: Sequence[str]) -> str:
    """peft's target_modules for layers of these names in the language model alone: the vision tower
    has some of the same names."""
    return rf"model\.language_model\..*\.({'|'.join(names)})"


@contextmanager
def adapter_off(module: nn.Module) -> Iterator[None]:
    """Inside, the module computes as it did before it had an adapter."""
    layers = [one for one in module.modules() if isinstance(one, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters by name, in a stable order."""
    return {name: one for name, one in module.named_parameters() if one.requires_grad}


def require_frozen(module: LanguageModule) -> int:
    """Prove that nothing trains what is never trained.

    Returns:
        Their parameters.

    Raises:
        RuntimeError: a parameter of theirs is trained, or one of their modules is in training mode.
    """
    parts = module.frozen_parts()
    thawed = [
        f"{name}.{inside}"
        for name, part in parts.items()
        for inside, parameter in part.named_parameters()
        if parameter.requires_grad
    ]
    if thawed:
        raise RuntimeError(f"{len(thawed)} frozen parameters are trained, such as {thawed[0]}")
    for name, part in parts.items():
        if any(one.training for one in part.modules()):
            raise RuntimeError(f"{name} is in training mode, but frozen")
    return sum(one.numel() for part in parts.values() for one in part.parameters())
