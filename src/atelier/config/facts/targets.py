"""Which modules a LoRA adapts, and how large that makes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from atelier.config.facts.files import Tensors
from atelier.config.sections.policy import LoraConfig

Modules = Mapping[str, tuple[int, ...]]
"""Shape of the weight of every module."""


def modules(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """Modules with a weight."""
    return {
        name.removesuffix(".weight"): one.shape
        for name, one in tensors.items()
        if name.endswith(".weight")
    }


def is_targeted(module: str, targets: Iterable[str]) -> bool:
    """Whether peft adapts a module: its name, or the end of its name, is a target."""
    return any(module == target or module.endswith(f".{target}") for target in targets)


def adapter_parameters(found: Modules, lora: LoraConfig) -> int:
    """A [rank, in] and B [out, rank] of every module that is adapted."""
    return sum(
        lora.rank * sum(shape)
        for module, shape in found.items()
        if is_targeted(module, lora.target_modules)
    )


def unknown_targets(
    found: Modules, lora: LoraConfig, may_lack: Collection[str] = ()
) -> tuple[str, ...]:
    """Targets that name nothing, or (also) something else than linear layers: a merged export
    adds the product of two matrices to a matrix.

    Args:
        may_lack: targets that a model need not have.
    """

    def is_unknown(target: str) -> bool:
        shapes = [shape for module, shape in found.items() if is_targeted(module, (target,))]
        return any(len(shape) != 2 for shape in shapes) or not (shapes or target in may_lack)

    return tuple(target for target in lora.target_modules if is_unknown(target))
