"""sha256 of named tensors, the same for who writes them and for who loads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def tensor_line(name: str, tensor: torch.Tensor) -> str:
    """Name, dtype, shape and sha256 of the bytes of one tensor."""
    import torch

    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    digest = hashlib.sha256(data).hexdigest()
    return f"{name} {tensor.dtype} {tuple(tensor.shape)} {digest}"


def lines_digest(lines: Iterable[str]) -> str:
    """sha256 of the lines in alphabetical order: tensors may come in any order, or by shards."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """One sha256 for named tensors, equal only if names, dtypes, shapes and bytes are."""
    return lines_digest(tensor_line(name, tensor) for name, tensor in tensors.items())
