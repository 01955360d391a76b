"""The dtype that a trained model computes in (policy.dtype): the same in rollout and replay."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from atelier.config.sections.policy_parts import Dtype

_AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def computing_in(dtype: Dtype, device: torch.device) -> AbstractContextManager[None]:
    """Inside, autocast to a 16-bit dtype; nothing for float32."""
    chosen = _AUTOCAST[dtype]
    return torch.autocast(device.type, chosen, enabled=chosen is not None)
