"""The toy token policy as one that writes: a token ends what it writes, or nothing does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from atelier.policies.base import Rollout, Sample
from tests.support.toy_token_policy import LENGTH, VOCABULARY, ToyTokenPolicy

END = VOCABULARY - 1


class ToyCompletions(ToyTokenPolicy):
    """See policies.base.Policy. What it wrote behind the end is neither trained nor painted."""

    @torch.no_grad()
    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        rollout = _completed(super().rollout(module, samples))
        assert rollout.mask is not None
        written = rollout.mask.numpy()[:, None, :, None]
        return replace(rollout, made=rollout.images * written.astype(np.uint8))

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        return _completed(super().unpack(samples, tensors))


def _completed(rollout: Rollout) -> Rollout:
    ends = rollout.record["tokens"] == END
    before = ends.cumsum(1) - ends.int()
    return replace(rollout, mask=before == 0, ended=ends.any(1, keepdim=True), longest=(LENGTH,))
