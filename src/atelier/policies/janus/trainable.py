"""Which parameters of a Janus model are trained (spec janus 2), and what they were before."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from atelier.policies.janus.module import JanusModule

FROZEN = ("vision_model", "aligner", "vqmodel")
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
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
    for name in FROZEN:
        getattr(module.janus.model, name).requires_grad_(False)
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
    """Freeze the module, and put a low-rank adapter on its language model: Gaussian A, zero B.

    Its parameters are float32 whatever the module is held in: a 16-bit weight would lose the small
    updates of AdamW.

    Args:
        projections: names of the language model's linear layers. The vision tower has some of the
            same names; it gets none.
        image_layers: adapt those of the image head and of the image codes' aligner too.
        seed: of A; None: the values do not matter.

    Raises:
        ValueError: the language model has no layer of such a name.
    """
    module.requires_grad_(False)
    targets = language_model_layers(projections)
    if image_layers:
        targets = rf"{targets}|model\.({_IMAGE_LAYERS})"
    config = PeftLoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets,
        init_lora_weights="gaussian",
        lora_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        inject_adapter_in_model(config, module.janus)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    module.eval()


def language_model_layers(names: Sequence[str]) -> str:
    """peft's target_modules for layers of these names in the language model alone."""
    return rf"model\.language_model\..*\.({'|'.join(names)})"


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters by name, in a stable order."""
    return {name: one for name, one in module.named_parameters() if one.requires_grad}


def require_frozen(module: JanusModule) -> int:
    """Prove that nothing trains the parts that see images, nor the image tokenizer.

    Returns:
        Parameters of the frozen parts.

    Raises:
        RuntimeError: a parameter of theirs is trained, or one of their modules is in training mode.
    """
    inner = module.janus.model
    parts = {name: getattr(inner, name) for name in FROZEN}
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


def frozen_copy(module: JanusModule) -> JanusModule:
    """What the module is now, to compare with later; frozen parts are shared, not copied."""
    shared = (getattr(module.janus.model, name) for name in FROZEN)
    reference = copy.deepcopy(module, memo={id(part): part for part in shared})
    return reference.requires_grad_(False)


@contextmanager
def adapter_off(module: JanusModule) -> Iterator[None]:
    """Inside, the module computes as it did before it had an adapter."""
    layers = [one for one in module.modules() if isinstance(one, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
