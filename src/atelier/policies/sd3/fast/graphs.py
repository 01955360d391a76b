"""Whole forward passes without gradients as CUDA graphs.

A pass of a large transformer launches a thousand kernels, and Python takes longer to launch them
than a GPU to run them. Recorded once a shape, they are launched all at once. A graph holds the
addresses of weights: where these are changed in place it computes with the new ones, and where they
got other memory it is recorded anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from atelier.policies.sd3.fast.held import Held

logger = logging.getLogger(__name__)

RECORDINGS = 12  # each has its own inputs in memory, and takes the time of a few passes
WARM_UP = 2  # passes before one is recorded: blocks are compiled, libraries get their workspaces

Recorded = tuple[Callable[[], None], Tensor]
"""What plays a pass back, and the tensor that its result is in."""

Record = Callable[[Callable[[], Tensor]], Recorded]


@dataclass
class _Module:
    """What was recorded of a module, by what a recording depends on."""

    held: Held
    passes: dict[Any, tuple[Mapping[str, Tensor], Recorded]] = field(default_factory=dict)


class Graphs:
    """Forward passes of transformers, played back where they were recorded.

    Args:
        record: how; see `recorder`.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self._modules: dict[nn.Module, _Module] = {}

    def __call__(self, module: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """What the transformer gives of these inputs, in memory of its own.

        What is computed depends on the module, shapes and dtypes, autocast and adapters; each of
        them is recorded when it first comes up. When there have been too many, further ones run as
        they would without this.

        Args:
            module: an SD3Transformer2DModel, or what is called as one; not what engines wrap it in.

        Raises:
            ValueError: a gradient would be lost.
        """
        if torch.is_grad_enabled():
            raise ValueError("a recorded forward pass has no gradients: torch.no_grad() is missing")
        mine = self._modules.get(module)
        if mine is None or not mine.held.is_same():
            mine = self._modules[module] = _Module(Held(module))
        key = (mine.held.state(), *_kind(inputs))
        if key not in mine.passes:
            count = 1 + sum(len(one.passes) for one in self._modules.values())
            if count > RECORDINGS:
                return _run(module, inputs)
            if count == RECORDINGS:
                logger.warning("no more than %d kinds of forward passes are recorded", RECORDINGS)
            mine.passes[key] = self._recorded(module, inputs)
            mine.held = Held(module)  # after it: the first pass lays frozen weights together
        given, (play, made) = mine.passes[key]
        for name, value in inputs.items():
            given[name].copy_(value)
        play()
        return made.clone()

    def _recorded(
        self, module: nn.Module, inputs: Mapping[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], Recorded]:
        given = {name: value.clone() for name, value in inputs.items()}
        return given, self._record(lambda: _run(module, given))


def _run(module: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    made: Tensor = module(**inputs, return_dict=False)[0]
    return made


def _kind(inputs: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Inputs but for their values, and what autocast makes of them. Hashable."""
    tensors = tuple(
        (name, one.shape, one.dtype, one.device) for name, one in sorted(inputs.items())
    )
    types = {one.device.type for one in inputs.values()}
    casts = tuple(
        (torch.is_autocast_enabled(one), torch.get_autocast_dtype(one)) for one in sorted(types)
    )
    return tensors, casts


def recorder(device: torch.device) -> Record:
    """CUDA graphs of a device. All share their memory, so a result lasts until the next is made."""
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)

    def record(run: Callable[[], Tensor]) -> Recorded:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Autocast keeps what it has cast of trained weights: a graph has to cast them itself, each
        # time, and nobody else may use what lies in its memory.
        torch.clear_autocast_cache()
        # What other threads do on the GPU meanwhile is no business of the recording.
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            made = run()
        torch.clear_autocast_cache()
        return graph.replay, made

    return record
