"""Proof that what is frozen stays what it was."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def freeze(module: nn.Module) -> nn.Module:
    """Without gradients, in eval mode."""
    return module.requires_grad_(False).eval()


def weights_digest(module: nn.Module) -> str:
    """sha256 (64 hex digits) of names, dtypes, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(values.numpy().data)
    return digest.hexdigest()
