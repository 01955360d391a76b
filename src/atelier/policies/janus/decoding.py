"""One token after the other over a cache of keys and values.

Everything has the shape it will have at the end: with a static cache a step's kernels are the same
for every token, so that a step can be recorded once and played back (`cuda_graph`), or compiled.
Most of an eager step of a model of this size is spent launching kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from atelier.policies.janus.attention import positions, visible
from atelier.policies.janus.module import JanusModule, Kind, twice
from atelier.policies.janus.rows import Rows

Execution = Literal["eager", "dynamic", "cuda_graph", "compile"]
WARM_UP = 2  # eager steps before one is recorded: libraries allocate their workspaces in them

Step = Callable[[Tensor], Tensor]


class StaticKeysAndValues(StaticCache):
    """Keys in the dtype of the values.

    Under autocast rotary embeddings make keys float32, and attention makes them 16 bits again: all
    of them, at each step.
    """

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)


@dataclass
class _Places:
    """keys [R, capacity] bool: not hidden; padding [R, 1]; next [1]: where the next token goes."""

    keys: Tensor
    padding: Tensor
    next: Tensor

    def put(self, other: _Places) -> None:
        """Take over values, in place."""
        self.keys.copy_(other.keys)
        self.padding.copy_(other.padding)
        self.next.copy_(other.next)


class Decoder:
    """Feeds R rows to a model: B contexts, and B unconditional ones where it is guided.

    Args:
        capacity: most places of a row, context and new tokens together.
        execution: `eager`; `dynamic`: a cache that grows; `cuda_graph`: a recorded step, for GPUs
            only; `compile`: torch.compile of the step, worth its minutes where this decoder is kept
            for many rollouts.
        backend: of torch.compile.
    """

    def __init__(
        self,
        module: JanusModule,
        kind: Kind,
        guided: bool,
        capacity: int,
        execution: Execution = "eager",
        backend: str = "inductor",
    ) -> None:
        self._module, self._kind, self._guided = module, kind, guided
        self._capacity, self._execution = capacity, execution
        self._static = execution != "dynamic"
        self._cache = self._new_cache()
        self._places: _Places | None = None
        self._steps = 0
        self._recorded: Step | None = None
        self._compiled: Step | None = None
        if execution == "compile":
            self._compiled = torch.compile(self._forward, backend=backend, dynamic=False)

    def begin(self, rows: Rows) -> Tensor:
        """Read the contexts; the logits [R, V] of the first token."""
        embeddings = self._module.embed(rows, self._guided)
        length = embeddings.shape[1]
        if length > self._capacity:
            raise ValueError(f"contexts of {length} tokens do not fit in {self._capacity} places")
        places = self._take(rows, length)
        mask = visible(places.keys[:, : self._width(length)], 0, length)
        position = positions(places.padding, 0, length)
        hidden = self._module.hidden(embeddings, mask, position, self._cache)
        return self._module.logits(hidden[:, -1], self._kind)

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens [B], the same to both halves; the logits [R, V] of the next ones."""
        if self._places is None:
            raise RuntimeError("there is no context to go on from: begin first")
        self._steps += 1
        if self._compiled is not None:
            logits = self._compiled(tokens)
        elif self._execution == "cuda_graph" and self._steps > WARM_UP:
            self._recorded = self._recorded or record(self._forward, tokens)
            logits = self._recorded(tokens)
        else:
            logits = self._forward(tokens)
        self._places.next.add_(1)
        return logits

    def _take(self, rows: Rows, length: int) -> _Places:
        """Masks and counters of other contexts, where a compiled step finds them again."""
        padding = twice(rows.padding) if self._guided else rows.padding
        context = twice(rows.mask) if self._guided else rows.mask
        keys = context.new_ones((len(context), self._capacity))
        keys[:, :length] = context
        places = _Places(keys, padding, torch.full((1,), length, device=keys.device))
        if self._places is not None and self._compiled is not None:
            self._cache.reset()
            self._places.put(places)
        else:
            self._cache, self._places = self._new_cache(), places
        self._steps, self._recorded = 0, None
        return self._places

    def _new_cache(self) -> Any:
        config = self._module.language_model.config
        if self._static:
            return StaticKeysAndValues(config=config, max_cache_len=self._capacity)
        return DynamicCache(config=config)

    def _forward(self, tokens: Tensor) -> Tensor:
        assert self._places is not None
        places = self._places
        tokens = twice(tokens) if self._guided else tokens
        embeddings = self._module.embed_tokens(tokens[:, None], self._kind)
        mask = visible(places.keys[:, : self._width(1)], places.next, 1)
        position = positions(places.padding, places.next, 1)
        hidden = self._module.hidden(embeddings, mask, position, self._cache)
        return self._module.logits(hidden[:, -1], self._kind)

    def _width(self, queries: int) -> int:
        """Keys that the cache gives attention."""
        if self._static:
            return self._capacity
        return int(self._cache.get_seq_length()) + queries


def record(step: Step, tokens: Tensor) -> Step:
    """A CUDA graph of `step`: recording runs nothing, playing it back launches all kernels at once.

    The logits it returns are overwritten by the next step. It holds the addresses of weights, so it
    does not outlive a rollout.

    Raises:
        ValueError: tokens are not on a GPU.
    """
    if not tokens.is_cuda:
        raise ValueError("execution cuda_graph: needs a GPU; choose eager")
    given = tokens.clone()
    graph = torch.cuda.CUDAGraph()
    # What other threads do on the GPU meanwhile is no business of the recording.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        logits = step(given)

    def play(tokens: Tensor) -> Tensor:
        given.copy_(tokens)
        graph.replay()
        return logits

    return play
