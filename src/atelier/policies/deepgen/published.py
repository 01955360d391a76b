"""Weights by the names of published checkpoints (.pth), and what of them goes where.

Wrappers and libraries have given the same weights other names; `normalised` is the one that is used
here, and what a directory's parts are called by. Source: DeepGen-RL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from atelier.config.facts.qwen import LANGUAGE_MODEL as _LANGUAGE_MODEL
from atelier.config.facts.qwen import VISION as _VISION
from atelier.config.facts.qwen import loaded_name
from atelier.errors import ConfigError
from atelier.model_files import no_weight

WRAPPERS = ("module.", "model.")
TRANSFORMER, VLM = "transformer.", "lmm."
BRIDGE = ("connector.", "projector_1.", "projector_2.", "projector_3.", "meta_queries")
ASIDE = ("vae.", "ema.")
"""Groups that a checkpoint may have and a policy has no use for: its autoencoder is the base's, and
an average of the same weights."""

_LORA = re.compile(
    r"^(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.(?!weight$)\w+)?(?:\.weight)?$"
)


def normalised(name: str) -> str:
    """The name of a weight without what training code puts before it, the language model's as in
    transformers 4."""
    while name.startswith(WRAPPERS):
        name = name.split(".", 1)[1]
    for longer, shorter in (("visual.", "visual."), ("language_model.", "model.")):
        if name.startswith(f"{VLM}model.{longer}"):
            return f"{VLM}{shorter}{name.removeprefix(f'{VLM}model.{longer}')}"
    return name


def published_vlm_name(name: str) -> str:
    """What published checkpoints call a weight of the language model, without `lmm.`."""
    name = loaded_name(name)
    for own, theirs in ((_LANGUAGE_MODEL, "model."), (_VISION, "visual.")):
        if name.startswith(own):
            return theirs + name.removeprefix(own)
    return name


@dataclass(frozen=True)
class Published:
    """A checkpoint's weights by part, each by the names that the part has in this version of the
    libraries.

    Attributes:
        aside: names of what is not used.
    """

    transformer: dict[str, Tensor] = field(default_factory=dict)
    bridge: dict[str, Tensor] = field(default_factory=dict)
    vlm: dict[str, Tensor] = field(default_factory=dict)
    aside: tuple[str, ...] = ()

    @property
    def adapted(self) -> set[str]:
        """Modules of the language model that it has a LoRA of."""
        return {match["module"] for name in self.vlm if (match := _LORA.match(name))}

    @property
    def in_full(self) -> set[str]:
        """Those whose weight it has, and no LoRA beside."""
        weights = {
            _of_base(name).removesuffix(".weight") for name in self.vlm if not _LORA.match(name)
        }
        return weights - self.adapted

    def over(self, other: Published) -> Published:
        """These weights, and where there are none, those of another checkpoint."""
        return Published(
            {**other.transformer, **self.transformer},
            {**other.bridge, **self.bridge},
            {**other.vlm, **self.vlm},
            (*self.aside, *other.aside),
        )


def require_one_form(key: str, upper: Published, lower: Published) -> None:
    """Raise ConfigError where one of two checkpoints has a module of the language model in full and
    the other a LoRA of it, which would be merged into what may hold it already.

    Args:
        key: where the lower one is named, for the error.
    """
    both = sorted((upper.in_full & lower.adapted) | (upper.adapted & lower.in_full))
    if both:
        full, other = "policy.path", key
        if both[0] in upper.adapted:
            full, other = other, full
        raise ConfigError(
            f"{key}: {full} holds {len(both)} modules of the language model in full, such as "
            f"{both[0]}, and {other} a LoRA of them, which would be merged into what may hold it "
            "already; a checkpoint with the whole language model needs no other beneath it"
        )


def sort_weights(where: str, weights: Mapping[str, Tensor]) -> Published:
    """Every weight of a file in its part.

    Raises:
        ConfigError: one belongs to none, or two have one name.
    """
    found = Published()
    aside: list[str] = []
    unknown: list[str] = []
    for stored, value in weights.items():
        name = normalised(stored)
        if name.startswith(TRANSFORMER):
            part, own = found.transformer, name.removeprefix(TRANSFORMER)
        elif name.startswith(BRIDGE):
            part, own = found.bridge, name
        elif name.startswith(VLM):
            part, own = found.vlm, loaded_name(name.removeprefix(VLM))
        else:
            (aside if name.startswith(ASIDE) else unknown).append(stored)
            continue
        if own in part:
            raise ConfigError(f"{where}: has two weights for {name}, one of them as {stored}")
        part[own] = value
    if unknown:
        raise ConfigError(
            f"{where}: {len(unknown)} weights are of no part of a DeepGen model, such as "
            f"{unknown[0]}; it has {', '.join((TRANSFORMER, *BRIDGE, VLM))}"
        )
    return Published(found.transformer, found.bridge, found.vlm, tuple(aside))


# The language model's adapter ---------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """What became of a checkpoint's weights of the language model.

    Attributes:
        replaced: weights that were taken as they are.
        adapted: modules that a LoRA was added to.
    """

    replaced: int
    adapted: int


@torch.no_grad()
def merge_vlm(where: str, vlm: Any, weights: Mapping[str, Tensor], alpha: float) -> Merged:
    """Put a checkpoint's weights into a language model: those that it has in full, and W + (alpha /
    r) B A where it has a LoRA of rank r.

    Args:
        vlm: Qwen2_5_VLForConditionalGeneration; changed in place.
        alpha: of the LoRA, which is not stored with it (128 as published).

    Raises:
        ConfigError: a weight of no module, half an adapter, or shapes that do not fit.
    """
    _untie(vlm)
    held = dict(vlm.named_parameters())
    sides: dict[str, dict[str, Tensor]] = {}
    replaced = 0
    for name, value in weights.items():
        if not value.is_floating_point():
            raise no_weight(where, name, str(value.dtype).removeprefix("torch."))
        match = _LORA.match(name)
        if match is not None:
            sides.setdefault(match["module"], {})[match["side"]] = value
            continue
        own = held.get(_of_base(name))
        if own is None or own.shape != value.shape:
            raise ConfigError(f"{where}: {name} {list(value.shape)} is no weight of its base")
        own.copy_(value)
        replaced += 1
    for module, pair in sides.items():
        own = held.get(f"{module}.weight")
        if own is None or set(pair) != {"A", "B"}:
            raise ConfigError(f"{where}: its LoRA of {module} has no module or no other half")
        update = (pair["B"].float() @ pair["A"].float()) * (alpha / len(pair["A"]))
        if isinstance(vlm.get_submodule(module), nn.Embedding):
            update = update.T
        _add(where, module, own, update)
    return Merged(replaced, len(sides))


def _add(where: str, module: str, own: Tensor, update: Tensor) -> None:
    """An adapter's update to a weight, in place."""
    if update.shape != own.shape:
        raise ConfigError(
            f"{where}: its LoRA of {module} makes {list(update.shape)}, the base has "
            f"{list(own.shape)}"
        )
    own.copy_(own.float() + update.to(own.device))


def _of_base(name: str) -> str:
    """A weight's name without what peft puts into that of an adapted module."""
    return name.replace(".base_layer.", ".")


def _untie(vlm: Any) -> None:
    """An adapter changes the text head and the embedding by different products."""
    head, table = vlm.lm_head, vlm.get_input_embeddings()
    if head.weight is table.weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), head.weight.requires_grad)
    vlm.config.tie_word_embeddings = False
    vlm.config.get_text_config().tie_word_embeddings = False
