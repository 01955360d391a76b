"""Whole pre-trainings in small, in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from atelier.policies.pretraining import run


def pretrain_here(pretrain: Callable[[Any], None], options: Any) -> None:
    """Threads render images and look at them."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "ProcessPoolExecutor", lambda count, **_: ThreadPoolExecutor(count))
        pretrain(options)
