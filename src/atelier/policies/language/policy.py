"""What policies do alike that train a language model, whatever becomes of its tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from atelier.config.schema import RunConfig
from atelier.data.keys import key
from atelier.policies.base import Part, Replay, Rollout
from atelier.policies.language.adapters import (
    require_frozen,
    train_adapter,
    train_fully,
    trained,
)
from atelier.policies.language.module import LanguageModule
from atelier.policies.language.reference import Reference
from atelier.policies.precision import computing_in

ModuleT = TypeVar("ModuleT", bound=LanguageModule)


class LanguagePolicy(ABC, Generic[ModuleT]):
    """The part of policies.base.Policy that does not depend on the family.

    Args:
        model: of transformers, whose parameters are trained.
    """

    kl_forms = frozenset({"k3"})

    def __init__(self, model: nn.Module, config: RunConfig, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._step = 0
        self._reference: Reference | None = None
        self._structure: tuple[Any, Any] = type(model), model.config
        self._inner = self._make_module(model).to(device)
        self.module: nn.Module = self._inner
        require_frozen(self._inner)

    # What a family says --------------------------------------------------------------------------

    @abstractmethod
    def _around(self, model: Any) -> ModuleT:
        """What gives log-probs of the model's tokens."""

    @abstractmethod
    def _segment(self, rollout: Rollout, part: Part) -> Any:
        """What the module takes to give log-probs of a part's actions."""

    def _train_fully(self, module: ModuleT) -> None:
        """Say which parameters are trained where there is no adapter."""
        train_fully(module)

    # What is trained -----------------------------------------------------------------------------

    def _make_module(self, model: Any, seed: bool = True) -> ModuleT:
        policy, module = self._config.policy, self._around(model)
        if policy.trainable == "lora":
            lora = policy.lora
            chosen = key("lora", self._config.train.seed) if seed else None
            train_adapter(module, lora.rank, lora.alpha, lora.target_modules, chosen)
        else:
            self._train_fully(module)
        return module

    def fresh_module(self) -> nn.Module:
        kind, config = self._structure
        with torch.device("meta"):
            return self._make_module(kind(config), seed=False)

    def trainable(self) -> dict[str, nn.Parameter]:
        return trained(self.module)

    def prepare_reference(self) -> None:
        self._reference = Reference(self._inner)

    def close(self) -> None:
        """It has no threads of its own."""

    # Training ------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> Mapping[str, float]:
        self._step = step
        return {}

    def parts(self, rollout: Rollout) -> Iterator[Part]:
        """A segment a forward pass: all of its tokens are predicted at once."""
        for segment, actions in enumerate(rollout.all_segments()):
            yield Part(actions, segment)

    def replay(
        self, module: nn.Module, rollout: Rollout, part: Part, with_reference: bool
    ) -> Replay:
        segment = self._segment(rollout, part)
        with computing_in(self._config.policy.dtype, self._device):
            log_prob = module(segment)
            if not with_reference:
                return Replay(log_prob)
            assert self._reference is not None  # prepared before training
            reference = self._reference.log_probs(segment, module)
        return Replay(log_prob, {"log_prob": log_prob, "reference_log_prob": reference})
