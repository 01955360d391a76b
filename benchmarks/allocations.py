"""How much memory tensors take at most, counted operation by operation: on a CPU nothing else can.

A GPU's allocator also rounds, and kernels have workspaces; neither is seen here.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Allocations(TorchDispatchMode):
    """Inside, follows every storage from the operation that makes it to its end.

    Attributes:
        peak: most bytes that were alive after an operation, those from before included.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self._bytes = 0  # of all that are known; some may have ended
        self.peak = 0

    def __enter__(self) -> Allocations:
        for tensor in gc.get_objects():
            # By its type: some objects warn of their end when they are asked for their class.
            if issubclass(type(tensor), Tensor) and tensor.device.type != "meta":
                self._follow(tensor)
        self._look()
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            self._follow(tensor)
        self._look()
        return made

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        known = self._known.get(storage._cdata)
        if known is not None:
            if not known[0].expired():
                return
            self._bytes -= known[1]  # its address is used again
        self._known[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._bytes += storage.nbytes()

    def _look(self) -> None:
        """Those that have ended can only matter where there seem to be more bytes than ever."""
        if self._bytes > self.peak:
            self._known = {at: one for at, one in self._known.items() if not one[0].expired()}
            self._bytes = sum(size for _, size in self._known.values())
            self.peak = max(self.peak, self._bytes)


def _tensors(value: Any) -> Iterator[Tensor]:
    return (one for one in tree_iter(value) if isinstance(one, Tensor))
