"""Trained tensors by parameter name, out of a module and into it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atelier.errors import CheckpointError

CPU = torch.device("cpu")


def copies(parameters: Mapping[str, Tensor], device: torch.device = CPU) -> dict[str, Tensor]:
    """Copies of the parameters on a device."""
    return {name: value.detach().to(device, copy=True) for name, value in parameters.items()}


@torch.no_grad()
def put_weights(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy trained tensors into the parameters they were trained as.

    Raises CheckpointError where a name is only on one side, which a plain load would pass over, or
    a shape is another, which a plain copy may spread over the whole tensor.
    """
    if set(parameters) != set(weights):
        raise CheckpointError(
            f"the checkpoint holds {len(weights)} tensors, the policy trains {len(parameters)}; "
            f"only on one side: {sorted(set(parameters) ^ set(weights))[:3]}"
        )
    other = [name for name, value in weights.items() if value.shape != parameters[name].shape]
    if other:
        raise CheckpointError(
            f"the checkpoint's {other[0]} has shape {list(weights[other[0]].shape)}, the policy's "
            f"{list(parameters[other[0]].shape)}: it is a checkpoint of another model"
        )
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])
