"""What arrived of the trained weights in a model that a library loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

NAME = re.compile(r"^(?:base_model\.model\.)?(?P<name>.+\.lora_[AB])\.[^.]+\.weight$")


def arrived(family: ModuleType, model: Any, kind: str) -> tuple[dict[str, Any], list[float]]:
    """{name: tensor} by the base's names, and the scales of the adapter.

    Args:
        family: its part of this folder, which loaded `model`.
        kind: merged, then all weights of the trained part; or adapter, then the LoRA's alone.
    """
    if kind == "merged":
        return _once(family.weights(model)), []
    module = family.adapted(model)
    lora = {
        f"{match['name']}.weight": tensor
        for name, tensor in module.state_dict().items()
        if (match := NAME.match(name))
    }
    scaling = {
        float(value)
        for part in module.modules()
        if isinstance(getattr(part, "scaling", None), dict)
        for value in part.scaling.values()
    }
    return lora, sorted(scaling)


def require_all(info: Mapping[str, Any]) -> None:
    """Raise ValueError unless a model of transformers got all its weights, and no others: it only
    warns, and goes on with random numbers.

    Args:
        info: what `from_pretrained` says with `output_loading_info`.
    """
    for problem in ("missing_keys", "unexpected_keys"):
        if names := sorted(info[problem]):
            raise ValueError(f"{len(names)} {problem}, such as {names[0]}")


def _once(tensors: dict[str, Any]) -> dict[str, Any]:
    """Each tensor under its first name, where several names share one."""
    first: dict[int, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(tensor.data_ptr(), name)
    return {name: tensors[name] for name in first.values()}
