"""What the loop asks of a policy, whatever an action is.

Flow policies act by denoising transitions, token policies by tokens. Both roll out, and replay
what they rolled out through the same kernel with gradients. The loop never looks inside
`Rollout.record`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from atelier.data.prompts import Prompt


@dataclass(frozen=True)
class Sample:
    """One image to be made: who it is, which group it belongs to, what it shows.

    `index` is the global sample id of the step; with the seed and the step it keys all noise, so
    the image does not depend on how many ranks there are. `group_id` is the position of the
    prompt in the step: a prompt drawn twice would make two groups. `round` counts how often its
    group was given another prompt.
    """

    index: int
    group_id: int
    prompt: Prompt
    round: int = 0


@dataclass(frozen=True)
class Rollout:
    """A micro-batch of B samples with A trained actions each, as the policy sampled them.

    old_log_probs [B, A] float32; images uint8 [B, H, W, 3]; record holds what replay needs.
    """

    samples: Sequence[Sample]
    old_log_probs: Tensor
    images: np.ndarray
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Replay:
    """n replayed actions: log-probs [B, n], the statistics the chosen KL needs, and by what each
    policy loss is multiplied [B, n], where the form of the log-probs asks for it."""

    log_prob: Tensor
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    weight: Tensor | None = None


class Policy(Protocol):
    """A model that can be trained by the loop."""

    module: nn.Module
    """What is trained. The engine may wrap it; forward passes go through the wrapped module."""

    kl_forms: frozenset[str]
    """Names of algorithms.kl.KL_FORMS whose statistics replay supplies."""

    def begin_step(self, step: int) -> Mapping[str, float]:
        """Fix what all samples of a step share (the window); return it as metrics."""
        ...

    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        """Sample images without gradients."""
        ...

    def action_slices(self, rollout: Rollout) -> Iterator[slice]:
        """Split the A actions into what one forward pass replays."""
        ...

    def replay(
        self, module: nn.Module, rollout: Rollout, actions: slice, with_reference: bool
    ) -> Replay:
        """Log-probs with gradients of the stored actions, by the kernel of the rollout."""
        ...

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        """What of a rollout's record cannot be made anew, to be kept in a checkpoint."""
        ...

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """The record that `pack` took apart; replaying it gives the same bits."""
        ...

    def generate(
        self, module: nn.Module, prompts: Sequence[str], noise_keys: Sequence[int]
    ) -> np.ndarray:
        """Evaluation images, deterministic given the keys: uint8 [N, H, W, 3]."""
        ...

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trained parameters of `module` by name, in a stable order."""
        ...

    def fresh_module(self) -> nn.Module:
        """A module of the same structure without the trained values, to check a save against."""
        ...

    def prepare_reference(self) -> None:
        """Keep what the policy is now as the reference; called before anything is loaded."""
        ...
