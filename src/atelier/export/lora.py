"""LoRA tensors by name: which a run must have, what they add to the base's weights, and whether
a file of them says what it should."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from atelier.config.facts.targets import is_targeted
from atelier.config.sections.policy import LoraConfig
from atelier.errors import CheckpointError

_NAME = re.compile(
    r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(?:\.\w+)?\.weight$"
)


@dataclass(frozen=True)
class LoraPair:
    """The two factors of one module: down [rank, in], up [out, rank], float32."""

    down: torch.Tensor
    up: torch.Tensor


def lora_pairs(
    tensors: Mapping[str, torch.Tensor], lora: LoraConfig, base_names: Iterable[str]
) -> dict[str, LoraPair]:
    """Group peft parameters by module and hold them against what the configuration asks for.

    Args:
        tensors: peft parameters, `<module>.lora_A[.<adapter>].weight` and B.
        lora: rank and target modules (suffixes of module names).
        base_names: names of the base's tensors that could be adapted.

    Raises:
        CheckpointError: a name that is no LoRA parameter, or modules without both factors, not in
            the base, or targeted and absent.
    """
    sides: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.match(name)
        if match is None:
            raise CheckpointError(f"trained tensor {name}: not a LoRA parameter of the base")
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    expected = _targeted(lora, base_names)
    _require_same(expected, set(sides))
    for module, found in sides.items():
        shapes = {side: tuple(tensor.shape) for side, tensor in found.items()}
        if set(found) != {"A", "B"} or shapes["A"][0] != lora.rank or shapes["B"][1] != lora.rank:
            raise CheckpointError(
                f"trained tensors of {module}: {shapes}, expected A [{lora.rank}, in] and "
                f"B [out, {lora.rank}] (policy.lora.rank)"
            )
    return {module: LoraPair(sides[module]["A"], sides[module]["B"]) for module in sorted(sides)}


def lora_update(pair: LoraPair, lora: LoraConfig) -> torch.Tensor:
    """The update alpha / rank * B A of one module's weight, float32 [out, in]."""
    return (pair.up.float() @ pair.down.float()) * (lora.alpha / lora.rank)


def named(pairs: Mapping[str, LoraPair]) -> dict[str, torch.Tensor]:
    """Back to tensors by name, `<module>.lora_A.weight` and `<module>.lora_B.weight`."""
    tensors = {}
    for module, pair in pairs.items():
        tensors[f"{module}.lora_A.weight"] = pair.down.contiguous()
        tensors[f"{module}.lora_B.weight"] = pair.up.contiguous()
    return tensors


def _targeted(lora: LoraConfig, base_names: Iterable[str]) -> set[str]:
    """Modules of the base that peft adapts: the name or its end is a target module."""
    modules = {name.removesuffix(".weight") for name in base_names if name.endswith(".weight")}
    return {module for module in modules if is_targeted(module, lora.target_modules)}


def _require_same(expected: set[str], found: set[str]) -> None:
    if not expected:
        raise CheckpointError("policy.lora.target_modules names no module of the base")
    if missing := sorted(expected - found):
        raise CheckpointError(
            f"{len(missing)} of {len(expected)} adapted modules have no trained tensors: "
            f"{', '.join(missing[:3])}: the checkpoint is of another base or configuration"
        )
    if unknown := sorted(found - expected):
        raise CheckpointError(
            f"{len(unknown)} trained modules are not targeted in the base: "
            f"{', '.join(unknown[:3])}: the checkpoint is of another base or configuration"
        )


def require_update(pairs: Mapping[str, LoraPair]) -> None:
    """Refuse an adapter that does nothing.

    Raises:
        CheckpointError: a factor has values that are not finite, or every B is zero.
    """
    for module, pair in pairs.items():
        if not (torch.isfinite(pair.down).all() and torch.isfinite(pair.up).all()):
            raise CheckpointError(f"trained tensors of {module} are not finite: training diverged")
    if not any(bool(pair.up.any()) for pair in pairs.values()):
        raise CheckpointError("every lora_B is zero: the adapter equals the base")


def read_lora_file(path: Path, begin: str, tensors: int, library: str) -> dict[str, str]:
    """The metadata of a file that holds so many LoRA parameters and nothing else.

    Args:
        begin: of every name.
        library: what would load the file, and pass over other names.

    Raises:
        CheckpointError: it is missing or unreadable, or holds others, more or fewer.
    """
    try:
        with safe_open(path, framework="pt") as file:
            keys, metadata = list(file.keys()), file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    matched = [key for key in keys if key.startswith(begin) and ".lora_" in key]
    if len(matched) != len(keys) or len(keys) != tensors:
        raise CheckpointError(
            f"{path}: {len(matched)} of {tensors} expected keys are LoRA parameters under "
            f"`{begin}`, the file holds {len(keys)}: {library} would silently skip the others"
        )
    return metadata


def require_scale(
    where: str, rank: Any, alpha: Any, scaling: Sequence[float], library: str
) -> None:
    """Raise CheckpointError unless the settings of an adapter give the scale it was trained at.

    Args:
        where: the settings are.
        rank, alpha: as found there; None where they are not.
        scaling: recorded at export.
    """
    try:
        found = [alpha / rank] if rank and alpha else []
    except TypeError:
        found = []
    if found != scaling:
        raise CheckpointError(
            f"{where}: says alpha {alpha} and rank {rank}, trained at scale {scaling}: {library} "
            "would silently load it at another scale"
        )
