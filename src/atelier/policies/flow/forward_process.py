"""Actions that are noise levels: finished images are noised again and denoised in one step.

The rollout is deterministic. What it leaves is the clean latent, and the velocity that the policy
which sampled it predicts at each level: computed while that policy is in place, so that a replay
needs the trained one alone. A level's noise is drawn anew from its key and not stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from atelier.config.sections.rollout import RolloutConfig
from atelier.dynamics.transitions import noised
from atelier.policies.base import Replay, Rollout, Sample, scored_rollout
from atelier.policies.flow.draws import Draws
from atelier.policies.flow.model import FlowModel
from atelier.policies.flow.noise import Request
from atelier.policies.flow.schedules import Schedules, Solver
from atelier.transfer import to_device


class ForwardProcess:
    """See policies.base.Policy for what the methods do."""

    kl_forms = frozenset({"velocity"})

    def __init__(
        self, model: FlowModel, config: RolloutConfig, schedules: Schedules, seed: int
    ) -> None:
        self._model = model
        self._config = config
        self._schedule = schedules.deterministic()
        self._draws = Draws(seed, 0)

    def begin_step(self, step: int) -> Mapping[str, float]:
        self._draws = Draws(self._draws.seed, step)
        return {}

    @torch.no_grad()
    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        model, draws, schedule = self._model, self._draws, self._schedule
        prompts = [one.prompt for one in samples]
        conditions = model.encode(prompts, self._config.guidance_scale)
        x = model.noise(*self._start(samples))[:, 0]
        solver = Solver(schedule)
        for index, timestep in enumerate(schedule.timesteps):
            velocity = model.velocity(module, x, timestep, conditions, self._config.guidance_scale)
            x = solver.next(index, x, velocity)
        actions = self._config.trained_levels
        record = {
            "clean": x,
            "levels": self._levels(samples),
            "draws": draws,
            "conditions": conditions,
        }
        rollout = Rollout(samples, actions, None, model.decode(x), record)
        sampled = [self._velocity(module, rollout, action) for action in range(actions)]
        record["behaviour_velocity"] = torch.stack(sampled, dim=1)
        return rollout

    def replay(
        self, module: nn.Module, rollout: Rollout, action: int, with_reference: bool
    ) -> Replay:
        record = rollout.record
        self._model.expect_noise(
            _renoising(rollout.samples, record["draws"], record["levels"][:, action:])
        )
        noisy, level, timestep = self._noised(rollout, action)
        inputs = (noisy, timestep, record["conditions"], self._config.guidance_scale)
        statistics = {
            "velocity": self._model.velocity(module, *inputs),
            "behaviour_velocity": record["behaviour_velocity"][:, action],
            "clean": record["clean"],
            "noisy": noisy,
            "level": level,
        }
        if with_reference:
            statistics["reference_velocity"] = self._model.reference_velocity(module, *inputs)
        return Replay(None, {name: value[:, None] for name, value in statistics.items()})

    def _velocity(self, module: nn.Module, rollout: Rollout, action: int) -> Tensor:
        noisy, _, timestep = self._noised(rollout, action)
        conditions, guidance = rollout.record["conditions"], self._config.guidance_scale
        return self._model.velocity(module, noisy, timestep, conditions, guidance)

    def _noised(self, rollout: Rollout, action: int) -> tuple[Tensor, Tensor, Tensor]:
        """Latents at each sample's level of an action, the level [B], the model's name for it."""
        record, clean = rollout.record, rollout.record["clean"]
        indices = record["levels"][:, action]
        (request,) = _renoising(rollout.samples, record["draws"], indices[:, None])
        noise = self._model.noise(*request)[:, 0]
        sigmas = torch.tensor([step.sigma for step in self._schedule.steps])
        level = to_device(sigmas[indices], clean.device)
        timesteps = self._schedule.timesteps[to_device(indices, clean.device)]
        return noised(clean, noise, level), level, timesteps

    # What is drawn ---------------------------------------------------------------------------

    def requests(self, samples: Sequence[Sample]) -> list[Request]:
        """The noise of a rollout, in its order."""
        renoising = _renoising(samples, self._draws, self._levels(samples))
        return [self._start(samples), *renoising]

    def _start(self, samples: Sequence[Sample]) -> Request:
        return Request(tuple(self._draws.noise(one) for one in samples))

    def _levels(self, samples: Sequence[Sample]) -> Tensor:
        """Indices of the levels that each is trained at [B, A], on the CPU."""
        actions, of = self._config.trained_levels, len(self._schedule.steps)
        return torch.tensor([self._draws.levels(one, actions, of) for one in samples])

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        kept = {name: rollout.record[name] for name in ("clean", "levels", "behaviour_velocity")}
        return {**kept, "step": torch.tensor([rollout.record["draws"].step])}

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        record = {
            "clean": tensors["clean"],
            "levels": tensors["levels"].cpu(),
            "behaviour_velocity": tensors["behaviour_velocity"],
            "draws": Draws(self._draws.seed, int(tensors["step"])),
            "conditions": self._model.encode(
                [one.prompt for one in samples], self._config.guidance_scale
            ),
        }
        return scored_rollout(samples, tensors["levels"].shape[1], None, record)


def _renoising(samples: Sequence[Sample], draws: Draws, levels: Tensor) -> list[Request]:
    """The noise of every action that takes finished images back to a level; levels [B, A]."""
    actions = levels.T.tolist()
    return [Request(tuple(map(draws.renoising, samples, indices))) for indices in actions]
