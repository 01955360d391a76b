"""How much of an update is left when the merged weights are rounded to 16 bit.

For every tensor the update touches, with `base` the weights trained from, `merged = base + update`
in float32 and `round` the rounding to the saved dtype,

    applied   = round(merged) - round(base)
    survival  = 1 - ||applied - update|| / ||update||,   at least 0

over all those tensors together (float64). `applied` is what a user of the 16-bit model gets over
the 16-bit base; survival is 1 when that is the update exactly, 0 when rounding loses all of it or
adds noise as large as it. It is the number that `export.min_update_survival` refuses by.

A projection of `applied` on `update` would not do: rounding errors are almost orthogonal to a small
update, so a projection stays near 1 while the update drowns in them. `changed` (the share of
updated elements whose 16-bit value differs from the base's) is reported, never refused by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass
class UpdateSurvival:
    """Sums over the tensors seen so far."""

    error: float = 0.0
    update: float = 0.0
    touched: int = 0
    kept: int = 0

    def add(self, base: torch.Tensor, merged: torch.Tensor, dtype: torch.dtype) -> None:
        """Count one tensor: `base` and `merged` float32 of one shape, `dtype` the saved one."""
        update = merged.double() - base.double()
        applied = merged.to(dtype).double() - base.to(dtype).double()
        self.error += float((applied - update).square().sum())
        self.update += float(update.square().sum())
        self.touched += int((update != 0).sum())
        self.kept += int(((applied != 0) & (update != 0)).sum())

    @property
    def share(self) -> float:
        """Survival as defined above, in [0, 1]; 0 for an update of nothing."""
        if self.update == 0:
            return 0.0
        return max(0.0, 1.0 - math.sqrt(self.error / self.update))

    @property
    def changed(self) -> float:
        """Share of the updated elements that differ from the base after rounding, in [0, 1]."""
        return self.kept / self.touched if self.touched else 0.0
