"""What benchmarks/trainer_speed.py trains: cases of a recipe at a size, and the work of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from atelier.config.plan import Plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.work import work
from benchmarks.arithmetic import Arithmetic, arithmetic
from benchmarks.sd3_shape import SHAPES, Shape

Way = Literal["stock", "fast", "folded"]
# Who computes the transformer's blocks; what others are compared with comes first.
WAYS: dict[Way, tuple[str, ...]] = {
    "stock": ("policy.transformer=stock",),
    "fast": ("policy.transformer=fast",),
    "folded": ("policy.transformer=fast", "policy.lora.folded=true"),
}
RECIPE = "sd35m/flow-grpo-fast-1gpu"
PROMPTS = 2
UPDATES = 2  # of a step
CLIP_TOKENS = 77


@dataclass(frozen=True)
class Size:
    """A shape, the side of its images (None: its own) and of their latents, tokens of T5, images of
    a prompt and rows of a micro-batch, and the side of the product that is the peak."""

    shape: Shape
    resolution: int | None
    latents: int
    t5_tokens: int
    group: int
    rows: int
    product: int

    @property
    def arithmetic(self) -> Arithmetic:
        """Operations of a row."""
        return arithmetic(self.shape, self.latents, CLIP_TOKENS + self.t5_tokens)


SIZES = {
    "medium": Size(SHAPES["medium"], 512, 64, 128, group=24, rows=24, product=8192),
    "small": Size(SHAPES["small"], None, 16, 8, group=4, rows=4, product=256),
}

# All ten steps stochastic and trained, as Flow-GRPO does on one GPU.
_ALL_STEPS = (
    "rollout.dynamics=flow_sde",
    "rollout.noise_level=0.7",
    "rollout.window.strategy=all",
    "rollout.window.range=null",
    "rollout.window.include_last=true",
    "algorithm.clip_range=1.0e-4",
)
_GUIDED = (*_ALL_STEPS, "rollout.guidance_scale=4.5")
CASES: dict[str, tuple[str, ...]] = {
    "no_cfg": _ALL_STEPS,
    "cfg": _GUIDED,
    "cfg_kl": (*_GUIDED, "algorithm.beta=0.04"),
    "window": (),  # three steps by CPS without guidance, as in the recipe
}


@dataclass(frozen=True)
class Setting:
    """Of all cases."""

    size: Size
    policy: Path
    device: str
    rank: int
    steps: int
    overrides: Sequence[str] = ()

    def config(self, case: str, way: Way) -> RunConfig:
        """The recipe with what a case changes of it, and last what the user does.

        Raises:
            ConfigError: an override is of no key, or wrong.
        """
        settings = (*self._common(), *CASES[case], *self._batch(case), *WAYS[way])
        config = resolve(RECIPE, [*settings, *self._ending(self.steps), *self.overrides])
        if not config.train.one_step_off:
            return config
        # The last step samples nothing ahead: one more, which is not measured.
        return resolve(RECIPE, [*settings, *self._ending(self.steps + 1), *self.overrides])

    def _ending(self, steps: int) -> Iterator[str]:
        yield from (f"train.steps={steps}", f"train.checkpoint_every={steps}")
        yield f"data.train_prompts={PROMPTS * steps}"

    def _common(self) -> Iterator[str]:
        side = "null" if self.size.resolution is None else self.size.resolution
        dtype = "float16" if self.device == "cuda" else "float32"
        yield f"policy.path={self.policy}"
        yield f"policy.resolution={side}"
        yield f"policy.max_sequence_length={self.size.t5_tokens}"
        yield from (f"policy.dtype={dtype}", f"policy.base_dtype={dtype}")
        yield from (f"policy.lora.rank={self.rank}", f"policy.lora.alpha={2 * self.rank}")
        yield "policy.text.disk_gigabytes=0"
        yield "data.heldout_prompts=2"
        yield "rollout.num_inference_steps=10"
        yield f"rollout.group_size={self.size.group}"
        yield from (f"train.prompts_per_step={PROMPTS}", f"train.updates_per_step={UPDATES}")
        # The recipe's 8, unless there are not so many updates.
        yield f"train.ema.every={min(8, UPDATES * self.steps)}"
        yield from ("train.evaluate_every=0", "tracking.samples_every=0")
        # Random weights draw no words: the size as JPEG is what tells images apart.
        yield "rewards.jpeg_compressibility.weight=1.0"
        if not reads_text():
            yield "rewards.ocr=null"
        yield from (f"launch.device={self.device}", "launch.processes=1")
        if self.device == "cpu":
            yield f"launch.threads={torch.get_num_threads()}"

    def _batch(self, case: str) -> Iterator[str]:
        """Guidance has two rows an image."""
        rows_an_image = 2 if "rollout.guidance_scale=4.5" in CASES[case] else 1
        yield f"rollout.micro_batch_size={self.size.rows // rows_an_image}"


def reads_text() -> bool:
    """Whether OCR can score here."""
    return find_spec("rapidocr") is not None


@dataclass(frozen=True)
class Load:
    """Of one training step.

    Attributes:
        images: that are made and trained on.
        actions: of an image that are trained.
        rollout_rows: that pass the transformer to make them.
        replay_rows: that pass it again: to find old log-probs, for the reference, to train.
        gradient_rows: those of them that are passed back, too.
    """

    images: int
    actions: int
    rollout_rows: int
    replay_rows: int
    gradient_rows: int


def load_of(config: RunConfig, plan: Plan) -> Load:
    """By what the plan counts for the whole run."""
    images = plan.samples_per_step
    trained = images * config.train.inner_epochs
    return Load(
        images=images,
        actions=plan.trained_actions * config.train.inner_epochs,
        rollout_rows=plan.rollout_passes // plan.steps,
        replay_rows=plan.replay_passes // plan.steps,
        gradient_rows=trained * work(config, None).replay,
    )
