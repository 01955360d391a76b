"""Stable Diffusion 3 as a flow policy: an action is a denoising transition inside the window.

Works for every pipeline of the real classes, the embedded tiny one and SD3.5-Medium alike.
Latents, transitions and log-probs are float32; the transformer computes in `policy.dtype` under
autocast, in the rollout and in the replay alike. A stored rollout holds the latents at the window's
steps (W + 1 tensors) and their schedule, never a timestep to look a sigma up from.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor, nn

from atelier.config.log_probs import log_prob_name
from atelier.config.schema import EvaluationConfig, PolicyConfig, RolloutConfig
from atelier.data.keys import key
from atelier.dynamics.log_probs import LOG_PROBS
from atelier.dynamics.transitions import TRANSITIONS, Transition, ode, sample
from atelier.dynamics.windows import draw_window
from atelier.policies.base import Replay, Rollout, Sample
from atelier.policies.flow_parts import merged, parts_by_window, step_indices
from atelier.policies.flow_schedules import Schedules, Solver
from atelier.policies.sd3.conditions import Conditions, PromptEncoder
from atelier.policies.sd3.loading import load_pipeline
from atelier.policies.sd3.lora import add_adapter

AUTOCAST_DTYPES = {"float32": None, "bfloat16": torch.bfloat16}


class SD3Policy:
    """A StableDiffusion3Pipeline that rolls out, replays and generates (policies.base.Policy)."""

    kl_forms = frozenset({"latent_mean", "velocity"})

    def __init__(
        self,
        pipeline: StableDiffusion3Pipeline,
        policy: PolicyConfig,
        rollout: RolloutConfig,
        evaluation: EvaluationConfig,
        seed: int,
        device: torch.device,
        rank: int = 0,
    ) -> None:
        self._pipeline = pipeline
        self._policy = policy
        self._rollout = rollout
        self._evaluation = evaluation
        self._seed = seed
        self._rank = rank
        self.device = device
        for part in (pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
            part.requires_grad_(False).eval().to(device)
        if pipeline.text_encoder_3 is not None:
            pipeline.text_encoder_3.requires_grad_(False).eval().to(device)
        self._encoder = PromptEncoder(pipeline, device, policy.max_sequence_length)
        self._base = pipeline.transformer
        self.module: nn.Module = self._make_module().to(device)
        self._reference: nn.Module | None = None
        self._step = 0
        self._schedules = Schedules(pipeline.scheduler, rollout, device)
        self._kernel = TRANSITIONS[rollout.dynamics]
        self._log_prob = LOG_PROBS[log_prob_name(rollout)]

    @classmethod
    def load(
        cls,
        policy: PolicyConfig,
        rollout: RolloutConfig,
        evaluation: EvaluationConfig,
        seed: int,
        device: torch.device | str,
        rank: int = 0,
    ) -> SD3Policy:
        """Load a pipeline directory or hub id in float32 (`policy.path`)."""
        pipeline = load_pipeline(policy.path)
        return cls(pipeline, policy, rollout, evaluation, seed, torch.device(device), rank)

    def _make_module(self) -> nn.Module:
        transformer = self._base
        transformer.eval()  # no dropout: the rollout and the replay must agree
        if self._policy.gradient_checkpointing:
            transformer.enable_gradient_checkpointing()
        if self._policy.trainable == "lora":
            transformer.requires_grad_(False)
            add_adapter(transformer, self._policy.lora, seed=key("lora", self._seed))
        else:
            transformer.requires_grad_(True)
            # Fixed sine-cosine table, a buffer in diffusers; nothing else is frozen.
        return transformer

    def fresh_module(self) -> nn.Module:
        """The transformer's structure on the meta device, adapter included, without values."""
        with torch.device("meta"):
            module = type(self._base).from_config(self._base.config)
            if self._policy.trainable == "lora":
                add_adapter(module, self._policy.lora, seed=None)
        return module

    def trainable(self) -> dict[str, nn.Parameter]:
        named = self.module.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    # Reference -------------------------------------------------------------------------------

    def prepare_reference(self) -> None:
        """Keep what the policy is before training: a frozen copy, or nothing with an adapter."""
        if self._policy.trainable == "full":
            self._reference = copy.deepcopy(self.module).requires_grad_(False)

    @contextmanager
    def _adapter_off(self) -> Iterator[None]:
        self._base.disable_adapters()
        try:
            yield
        finally:
            self._base.enable_adapters()

    def _reference_velocity(
        self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Conditions, scale: float
    ) -> Tensor:
        frozen = self._reference
        context: AbstractContextManager[None] = nullcontext() if frozen else self._adapter_off()
        with torch.no_grad(), context:
            return self._velocity(frozen or module, x, timestep, conditions, scale)

    # Rollout and replay ----------------------------------------------------------------------

    def begin_step(self, step: int) -> Mapping[str, float]:
        self._step = step
        window = self._window(group=0)  # of another scope than step: the first of them
        return {"window/start": window.start, "window/size": len(window)}

    def _window(self, group: int) -> range:
        config = self._rollout
        where = (config.num_inference_steps, self._seed, self._step, group, self._rank)
        return draw_window(config.window, *where)

    def _key(self, sample: Sample) -> int:
        again = (sample.round,) if sample.round else ()
        return key("rollout", self._seed, self._step, sample.index, *again)

    @torch.no_grad()
    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        config = self._rollout
        parts = parts_by_window([self._window(one.group_id) for one in samples])
        actions = len(parts[0].window)
        schedule = self._schedules.rollout(parts[0].window)
        conditions = self._encoder.encode([one.prompt.text for one in samples])
        noise = self.noise([self._key(one) for one in samples], 1 + actions)
        x, draws = noise[:, 0], noise[:, 1:]
        latents = x.new_empty(len(samples), actions + 1, *x.shape[1:])
        log_probs = x.new_empty(len(samples), actions)
        solver = Solver(schedule)
        for index, step in enumerate(schedule.steps):
            timestep = schedule.timesteps[index]
            velocity = self._velocity(module, x, timestep, conditions, config.guidance_scale)
            following = solver.next(index, x, velocity)
            for rows, window in parts:
                if index not in window:
                    continue
                action = index - window.start
                transition = self._kernel(x[rows], velocity[rows], step, config.noise_level)
                drawn = draws[rows, action]
                following[rows] = sample(transition, drawn)
                log_probs[rows, action] = self._log_prob.function(
                    following[rows], transition, drawn
                )
                latents[rows, action], latents[rows, action + 1] = x[rows], following[rows]
            x = following
        return Rollout(
            samples=samples,
            old_log_probs=log_probs,
            images=self.decode(x),
            record={
                "latents": latents,
                "noise": draws,
                "parts": parts,
                "schedule": schedule,
                "conditions": conditions,
            },
        )

    def action_slices(self, rollout: Rollout) -> Iterator[slice]:
        for action in range(rollout.old_log_probs.shape[1]):
            yield slice(action, action + 1)

    def replay(
        self, module: nn.Module, rollout: Rollout, actions: slice, with_reference: bool
    ) -> Replay:
        record, action, noise_level = rollout.record, actions.start, self._rollout.noise_level
        schedule, parts = record["schedule"], record["parts"]
        x, x_next = record["latents"][:, action], record["latents"][:, action + 1]
        timesteps = schedule.timesteps[step_indices(parts, action)]
        inputs = (x, timesteps, record["conditions"], self._rollout.guidance_scale)
        velocity = self._velocity(module, *inputs)
        reference = self._reference_velocity(module, *inputs) if with_reference else None
        replays = []
        for rows, window in parts:
            step = schedule.steps[window.start + action]
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
        starts = torch.empty(len(rollout.samples), dtype=torch.int64)
        for rows, window in record["parts"]:
            starts[rows] = window.start
        return {"latents": record["latents"], "noise": record["noise"], "starts": starts}

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Mapping[str, Any]:
        actions = tensors["noise"].shape[1]
        parts = parts_by_window([range(one, one + actions) for one in tensors["starts"].tolist()])
        return {
            "latents": tensors["latents"],
            "noise": tensors["noise"],
            "parts": parts,
            "schedule": self._schedules.rollout(parts[0].window),
            "conditions": self._encoder.encode([one.prompt.text for one in samples]),
        }

    # Images ----------------------------------------------------------------------------------

    def generate(
        self, module: nn.Module, prompts: Sequence[str], noise_keys: Sequence[int]
    ) -> np.ndarray:
        """Deterministic images from fixed noise, what the plain pipeline makes of those latents."""
        config = self._evaluation
        batches = []
        for start in range(0, len(prompts), config.micro_batch_size):
            chunk = slice(start, start + config.micro_batch_size)
            latents = self.noise(noise_keys[chunk], 1)[:, 0]
            batches.append(self.generate_from(module, prompts[chunk], latents))
        return np.concatenate(batches)

    @torch.no_grad()
    def generate_from(self, module: nn.Module, prompts: Sequence[str], x: Tensor) -> np.ndarray:
        """Images uint8 [B, H, W, 3] from initial latents [B, C, h, w] by the Euler ODE."""
        config = self._evaluation
        conditions = self._encoder.encode(prompts)
        schedule = self._schedules.of_scheduler(config.num_inference_steps)
        for step, timestep in zip(schedule.steps, schedule.timesteps, strict=True):
            x = ode(x, self._velocity(module, x, timestep, conditions, config.guidance_scale), step)
        return self.decode(x)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> np.ndarray:
        """Latents [B, C, h, w] to images uint8 [B, H, W, 3], in float32 as the pipeline does."""
        vae = self._pipeline.vae
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        images = vae.decode(latents, return_dict=False)[0]
        images = (images / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
        return (images * 255).round().to(torch.uint8).cpu().numpy()

    def noise(self, keys: Sequence[int], draws: int = 1) -> Tensor:
        """Standard normal float32 [B, draws, C, h, w], one CPU generator a key: on every device and
        for every world size the same."""
        config = self._base.config
        shape = (draws, config.in_channels, config.sample_size, config.sample_size)
        rows = [torch.randn(shape, generator=torch.Generator().manual_seed(one)) for one in keys]
        return torch.stack(rows).to(self.device)

    # The model -------------------------------------------------------------------------------

    def _velocity(
        self,
        module: nn.Module,
        x: Tensor,
        timestep: Tensor,
        conditions: Conditions,
        guidance_scale: float,
    ) -> Tensor:
        """Predicted velocity, float32 [B, C, h, w]; guidance keeps gradients in both branches."""
        timestep = timestep.expand(len(x))
        if guidance_scale == 1:
            return self._forward(module, x, timestep, conditions)
        unconditional = self._encoder.encode([""] * len(x))
        twice = (torch.cat([x, x]), torch.cat([timestep, timestep]))
        both = self._forward(module, *twice, conditions.after(unconditional))
        without, with_prompt = both.chunk(2)
        return without + guidance_scale * (with_prompt - without)

    def _forward(
        self, module: nn.Module, x: Tensor, timestep: Tensor, conditions: Conditions
    ) -> Tensor:
        dtype = AUTOCAST_DTYPES[self._policy.dtype]
        with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            output: Any = module(
                hidden_states=x,
                timestep=timestep,
                encoder_hidden_states=conditions.embeddings,
                pooled_projections=conditions.pooled,
                return_dict=False,
            )
        return output[0].float()


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
