"""Actions that are denoising transitions: the stochastic steps inside the window.

A stored rollout holds the latents before and behind the window's steps (W + 1 tensors where these
lie side by side) and their schedule, never a timestep to look a sigma up from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from atelier.config.log_probs import log_prob_name
from atelier.config.sections.rollout import RolloutConfig
from atelier.dynamics.log_probs import LOG_PROBS
from atelier.dynamics.transitions import TRANSITIONS, Transition, sample
from atelier.dynamics.windows import Window, draw_window
from atelier.policies.base import Replay, Rollout, Sample, scored_rollout
from atelier.policies.flow.draws import Draws
from atelier.policies.flow.model import FlowModel
from atelier.policies.flow.noise import Request
from atelier.policies.flow.parts import at_steps, merged, parts_by_window
from atelier.policies.flow.schedules import Schedules, Solver


class StochasticSteps:
    """See policies.base.Policy for what the methods do; replay takes one action."""

    kl_forms = frozenset({"latent_mean", "velocity", "scaled_velocity"})

    def __init__(
        self, model: FlowModel, config: RolloutConfig, schedules: Schedules, seed: int, rank: int
    ) -> None:
        self._model = model
        self._config = config
        self._schedules = schedules
        self._rank = rank
        self._draws = Draws(seed, 0)
        self._kernel = TRANSITIONS[config.dynamics]
        self._log_prob = LOG_PROBS[log_prob_name(config)]

    def begin_step(self, step: int) -> Mapping[str, float]:
        self._draws = Draws(self._draws.seed, step)
        window = self._window(group=0)  # of another scope than step: the first of them
        return {"window/start": window[0], "window/size": len(window)}

    def _window(self, group: int) -> Window:
        config, draws = self._config, self._draws
        where = (config.num_inference_steps, draws.seed, draws.step, group, self._rank)
        return draw_window(config.window, *where)

    @torch.no_grad()
    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        config, model = self._config, self._model
        conditions = model.encode([one.prompt for one in samples], config.guidance_scale)
        x, draws = self._noise(samples)
        parts = parts_by_window([self._window(one.group_id) for one in samples], x.device)
        actions = len(parts[0].window)
        schedule = self._schedules.rollout(parts[0].window)
        latents = x.new_empty(len(samples), parts[0].kept, *x.shape[1:])
        log_probs = x.new_empty(len(samples), actions)
        solver = Solver(schedule)
        for index, step in enumerate(schedule.steps):
            timestep = schedule.timesteps[index]
            velocity = model.velocity(module, x, timestep, conditions, config.guidance_scale)
            following = solver.next(index, x, velocity)
            for part in parts:
                rows, window = part.rows, part.window
                if index not in window:
                    continue
                action = window.index(index)
                transition = self._kernel(x[rows], velocity[rows], step, config.noise_level)
                drawn = draws[rows, action]
                following[rows] = sample(transition, drawn)
                log_probs[rows, action] = self._log_prob.function(
                    following[rows], transition, drawn
                )
                place = part.places[action]
                latents[rows, place], latents[rows, place + 1] = x[rows], following[rows]
            x = following
        return Rollout(
            samples=samples,
            actions=actions,
            old_log_probs=log_probs,
            made=model.decode(x),
            record={
                "latents": latents,
                "noise": draws,
                "parts": parts,
                "schedule": schedule,
                "conditions": conditions,
            },
        )

    def requests(self, samples: Sequence[Sample]) -> list[Request]:
        """The noise of a rollout: of what its stochastic steps add behind that of the start; and of
        the start that a group shares, where it does."""
        window = self._window(samples[0].group_id)  # all are as long
        own = Request(tuple(self._draws.noise(one) for one in samples), 1 + len(window))
        if not self._config.shared_start:
            return [own]
        return [own, Request(tuple(self._draws.shared_start(one) for one in samples))]

    def _noise(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Where images start [B, ...], and what their stochastic steps add [B, A, ...]."""
        noise, *starts = (self._model.noise(*one) for one in self.requests(samples))
        start = starts[0] if starts else noise
        return start[:, 0], noise[:, 1:]

    def replay(
        self, module: nn.Module, rollout: Rollout, action: int, with_reference: bool
    ) -> Replay:
        record, noise_level = rollout.record, self._config.noise_level
        schedule, parts = record["schedule"], record["parts"]
        place = parts[0].places[action]  # the same in every part
        x, x_next = record["latents"][:, place], record["latents"][:, place + 1]
        timesteps = at_steps(schedule.timesteps, parts, action)
        inputs = (x, timesteps, record["conditions"], self._config.guidance_scale)
        velocity = self._model.velocity(module, *inputs)
        reference = self._model.reference_velocity(module, *inputs) if with_reference else None
        replays = []
        for part in parts:
            rows, step = part.rows, schedule.steps[part.window[action]]
            transition = self._kernel(x[rows], velocity[rows], step, noise_level)
            drawn = record["noise"][rows, action]
            log_prob = self._log_prob.function(x_next[rows], transition, drawn)[:, None]
            weight = None
            if self._log_prob.by_length:
                weight = torch.full_like(log_prob, 1 / -step.dt)
            statistics: dict[str, Tensor] = {}
            if reference is not None:
                fixed = self._kernel(x[rows], reference[rows], step, noise_level)
                statistics = _kl_statistics(velocity[rows], transition, reference[rows], fixed)
            replays.append(Replay(log_prob, statistics, weight))
        return merged(replays, parts)

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        record = rollout.record
        steps = torch.empty(len(rollout.samples), rollout.actions, dtype=torch.int64)
        for part in record["parts"]:
            steps[[*part.numbers] or slice(None)] = torch.tensor(part.window)
        assert rollout.old_log_probs is not None  # as rollout() makes it
        return {
            "latents": record["latents"],
            "noise": record["noise"],
            "steps": steps,
            "old_log_probs": rollout.old_log_probs,
        }

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        actions = tensors["noise"].shape[1]
        windows = [tuple(steps) for steps in tensors["steps"].tolist()]
        parts = parts_by_window(windows, tensors["latents"].device)
        record = {
            "latents": tensors["latents"],
            "noise": tensors["noise"],
            "parts": parts,
            "schedule": self._schedules.rollout(parts[0].window),
            "conditions": self._model.encode(
                [one.prompt for one in samples], self._config.guidance_scale
            ),
        }
        return scored_rollout(samples, actions, tensors["old_log_probs"], record)


def _kl_statistics(
    velocity: Tensor, transition: Transition, reference: Tensor, reference_transition: Transition
) -> dict[str, Tensor]:
    """Statistics of one action, with the action dimension second."""
    return {
        "velocity": velocity[:, None],
        "reference_velocity": reference[:, None],
        "mean": transition.mean[:, None],
        "reference_mean": reference_transition.mean[:, None],
        "kl_std": torch.full((1, 1), transition.kl_std, device=velocity.device),
    }
