"""A denoising model as a policy: what it acts by is chosen by rollout.dynamics.

Latents, transitions, log-probs and trained parameters are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.rollout import RolloutConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Captioned, Generated, Part, Replay, Rollout, Sample
from atelier.policies.flow.denoising import denoised
from atelier.policies.flow.forward_process import ForwardProcess
from atelier.policies.flow.model import FlowModel
from atelier.policies.flow.pictures import picture_losses, picture_pixels
from atelier.policies.flow.schedules import Schedules
from atelier.policies.flow.stochastic_steps import StochasticSteps


class FlowPolicy(FlowModel):
    """policies.base.Policy of a model."""

    def __init__(
        self,
        rollout: RolloutConfig,
        evaluation: EvaluationConfig,
        scheduler: Any,
        tokens: int,
        seed: int,
        rank: int,
        device: torch.device,
    ) -> None:
        self.device = device
        self._evaluation = evaluation
        self._schedules = Schedules(scheduler, rollout, device, tokens)
        self._actions: ForwardProcess | StochasticSteps
        if rollout.dynamics == "ode":
            self._actions = ForwardProcess(self, rollout, self._schedules, seed)
        else:
            self._actions = StochasticSteps(self, rollout, self._schedules, seed, rank)
        self.kl_forms = self._actions.kl_forms

    # Training images -----------------------------------------------------------------------------

    def begin_step(self, step: int) -> Mapping[str, float]:
        return self._actions.begin_step(step)

    def expect_rollouts(self, batches: Sequence[Sequence[Sample]]) -> None:
        """See policies.base.DrawsAhead."""
        self.expect_noise([one for batch in batches for one in self._actions.requests(batch)])

    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        return self._actions.rollout(module, samples)

    def parts(self, rollout: Rollout) -> Iterator[Part]:
        """One action a forward pass: each has a timestep of its own."""
        for action in range(rollout.actions):
            yield Part(slice(action, action + 1))

    def replay(
        self, module: nn.Module, rollout: Rollout, part: Part, with_reference: bool
    ) -> Replay:
        return self._actions.replay(module, rollout, part.actions.start, with_reference)

    def pixels(self, one: Captioned) -> np.ndarray:
        """See policies.base.LearnsFromPictures."""
        return picture_pixels(one, self.image_side)

    def picture_losses(
        self, module: nn.Module, batch: Sequence[Captioned], pixels: np.ndarray
    ) -> Tensor:
        """See policies.base.LearnsFromPictures."""
        return picture_losses(self, module, self._schedules.training_shift, batch, pixels)

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        return self._actions.pack(rollout)

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        return self._actions.unpack(samples, tensors)

    # Evaluation images ---------------------------------------------------------------------------

    def generate(
        self, module: nn.Module, prompts: Sequence[Prompt], noise_keys: Sequence[int]
    ) -> Generated:
        """Deterministic images from fixed noise, what the plain pipeline makes of those latents."""
        config = self._evaluation
        batches = []
        for start in range(0, len(prompts), config.micro_batch_size):
            chunk = slice(start, start + config.micro_batch_size)
            latents = self.noise(noise_keys[chunk])[:, 0]
            batches.append(self.generate_from(module, prompts[chunk], latents))
        return Generated(np.concatenate(batches))

    @torch.no_grad()
    def generate_from(self, module: nn.Module, prompts: Sequence[Prompt], x: Tensor) -> np.ndarray:
        """Images uint8 [B, H, W, 3] from initial latents [B, C, h, w] by the Euler ODE."""
        config = self._evaluation
        conditions = self.encode(prompts, config.guidance_scale)
        schedule = self._schedules.of_scheduler(config.num_inference_steps)

        def velocity(x: Tensor, timestep: Tensor) -> Tensor:
            return self.velocity(module, x, timestep, conditions, config.guidance_scale)

        return self.decode(denoised(x, schedule, velocity)).wait()
