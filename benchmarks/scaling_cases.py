"""What benchmarks/scaling.py trains: recipes for eight GPUs, on random weights of their shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig

# More than any run gets to, so that none ends by writing a checkpoint.
ENDLESS = 1000
THREADS = 8  # CPU threads of a rank beside a GPU
ENGINES = {
    "ddp": ("launch.engine=ddp",),
    "zero2": ("launch.engine=deepspeed", "launch.zero_stage=2"),
    "zero3": ("launch.engine=deepspeed", "launch.zero_stage=3"),
    "zero3_sd3": (
        *("launch.engine=deepspeed", "launch.zero_stage=3"),
        "launch.zero_tuning=sd3",
    ),
}
# What every case changes: images are scored by the size of their file, which needs no service.
COMMON = (
    "rewards.jpeg_incompressibility.weight=1.0",
    "evaluation={prompts: 4, periodic_prompts: 4}",
    f"train={{evaluate_every: 0, steps: {ENDLESS}, checkpoint_every: {ENDLESS}}}",
    "tracking.samples_every=0",
)
SMALL = ("policy.dtype=float32", "launch.device=cpu", "rollout.micro_batch_size=8")


@dataclass(frozen=True)
class Case:
    """A recipe, and what of it is changed to be measured.

    Attributes:
        build: writes its model, of a size, into a folder; imports torch.
        prompts: of a rank and step, where the work of a rank is fixed.
        settings: at any size.
        small: for a CPU.
        pictures: captioned ones of an update, a prompt of the step.
    """

    recipe: str
    build: Callable[[str, Path], None]
    sizes: tuple[str, ...]
    prompts: int
    settings: tuple[str, ...]
    small: tuple[str, ...]
    pictures: int = 0


def _sd3(size: str, folder: Path) -> None:
    from benchmarks.sd3_shape import SHAPES, build_pipeline

    build_pipeline(SHAPES[size], real_text=False, folder=folder)


def _deepgen(size: str, folder: Path) -> None:
    from benchmarks.deepgen_shape import SIZES, write_deepgen

    write_deepgen(SIZES[size], folder)


def _janus(size: str, folder: Path) -> None:
    from benchmarks.janus_shape import JANUS_SHAPES, write_janus

    write_janus(JANUS_SHAPES[size], folder)


CASES = {
    "sd35m": Case(
        recipe="sd35m/flow-grpo-fast",
        build=_sd3,
        sizes=("medium", "small"),
        prompts=2,
        settings=("rewards.ocr=null", "policy.text.disk_gigabytes=0"),
        small=(
            *("policy.resolution=null", "policy.max_sequence_length=8", "policy.vae.dtype=float32"),
            *("policy.base_dtype=float32", "rollout.group_size=8"),
        ),
    ),
    # Denoised in 10 steps instead of 50, of which 60 % are trained as there; a constant rate, and
    # one at which few steps move weights.
    "deepgen": Case(
        recipe="deepgen/mr-grpo",
        build=_deepgen,
        sizes=("published", "short", "small"),
        prompts=2,
        settings=(
            "rewards={ocr: null, clip_similarity: null, unified_reward_think: null}",
            "data={source: scenes, train_prompts: 512, heldout_prompts: 8, sft: {scenes: 1024}}",
            *("evaluation.suite=scenes", "rollout.num_inference_steps=10"),
            "train={learning_rate: 1.0e-5, schedule: {kind: constant, warm_up_updates: 0}}",
            "policy.text.disk_gigabytes=0",
        ),
        small=("policy.resolution=null", "policy.text.dtype=float32"),
        pictures=8,
    ),
    "janus": Case(
        recipe="janus-pro-7b/pair-grpo",
        build=_janus,
        sizes=("7b", "1b", "small"),
        prompts=8,
        settings=("rewards.yes_no=null", "data={train_prompts: 1024, heldout_prompts: 16}"),
        small=("rollout.tokens.execution=eager", "rollout.group_size=8"),
    ),
}


@dataclass(frozen=True)
class Sweep:
    """What is the same for all runs of a command.

    Attributes:
        model: folder of the model.
        overrides: of the user.
    """

    case: str
    size: str
    model: Path
    overrides: Sequence[str] = ()

    def config(self, engine: str, ranks: int, prompts: int) -> RunConfig:
        """Of one run.

        Raises:
            ConfigError: an override is of no key, or wrong.
        """
        own = self._settings(engine, ranks, prompts)
        return resolve(CASES[self.case].recipe, [*own, *self.overrides], Path(os.devnull))

    def _settings(self, engine: str, ranks: int, prompts: int) -> Iterator[str]:
        case, is_small = CASES[self.case], self.size == "small"
        yield from (*COMMON, *case.settings, f"policy.path={self.model}", *ENGINES[engine])
        yield from (f"launch.processes={ranks}", f"train.prompts_per_step={prompts}")
        yield f"launch.threads={ranks * (1 if is_small else THREADS)}"
        if case.pictures:
            yield f"train.sft.pictures_per_update={case.pictures * prompts}"
        if is_small:
            yield from (*SMALL, *case.small)
