"""Very small real training runs, as processes of their own."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.data.captioned import captioned_table
from atelier.data.prepare import prepare
from atelier.data.prompts import Prompt, write_prompts
from atelier.policies.sd3.tiny import TinySD3Sizes, build_pipeline
from atelier.tracking.run_directory import RunDirectory
from tests.support import random_deepgen, random_janus, random_qwen
from tests.support.metric_rows import results
from tests.support.ranks import Ranks

SMALLEST = TinySD3Sizes(vae_channels=(8, 8, 8), layers=1, heads=2, head_width=8)

SETTINGS = (
    "rewards.ocr=null",
    "rewards.jpeg_compressibility.weight=1.0",
    "rollout.group_size=8",
    "rollout.micro_batch_size=8",
    "rollout.num_inference_steps=4",
    "rollout.window.size=2",
    "train.prompts_per_step=4",
    "train.updates_per_step=2",
    "train.steps=3",
    "train.checkpoint_every=1",
    "train.evaluate_every=0",
    "train.learning_rate=4e-5",
    "launch.device=cpu",
    "launch.threads=1",
)


def _folder() -> Path:
    """One that lasts as long as the process."""
    place = tempfile.mkdtemp(prefix="atelier-test-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Path(place)


@functools.cache
def untrained_pipeline() -> Path:
    """Directory of a one-layer pipeline whose weights are random, its output not zero."""
    import torch

    folder = _folder() / "pipeline"
    pipeline = build_pipeline(SMALLEST, seed=3)
    torch.manual_seed(3)
    for parameter in pipeline.transformer.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    pipeline.save_pretrained(folder)
    return folder


@functools.cache
def random_deepgen_model() -> Path:
    """Directory of a random DeepGen model."""
    return random_deepgen.save(_folder() / "deepgen")


def make_run(folder: Path, overrides: Sequence[str] = ()) -> RunDirectory:
    """A run directory with its configuration and prompts, ready for the trainer."""
    run = RunDirectory(folder)
    settings = [f"policy.path={untrained_pipeline()}", *SETTINGS, *overrides]
    config: RunConfig = resolve(recipe="tiny/base", overrides=settings)
    write_stage_configs(config, run)
    prompts = [
        Prompt(i, 0, f'the word "{word}" in red', {"target": word})
        for i, word in enumerate(["ABE", "KEM", "SUN", "TOP", "GHU", "WEP", "NYX", "BUR"])
    ]
    write_prompts(run.data / "train.parquet", prompts)
    write_prompts(run.data / "heldout.parquet", prompts)
    pictures = captioned_table(config.data)
    if pictures is not None:
        write_prompts(run.data / "sft.parquet", pictures)
    return run


JANUS = (
    "rewards.yes_no=null",
    "rewards.edit_yes_no=null",
    "judges.internvl.server.share_gpus=false",
    "rewards.custom.grey={function: 'tests.support.grey:greyness', weight: 1.0}",
    "policy.dtype=float32",
    "policy.gradient_checkpointing=false",
    "data.train_prompts=12",
    "data.heldout_prompts=4",
    "rollout.introspection.answer_tokens=10",
    "rollout.group_size=8",
    "rollout.micro_batch_size=8",
    "train.prompts_per_step=4",
    "train.updates_per_step=2",
    "train.steps=3",
    "train.schedule={warm_up_updates: 1, convert_updates: 3}",
    "train.learning_rate=1e-3",
    "train.schedule.convert_rate=5e-4",
    "train.checkpoint_every=1",
    "train.evaluate_every=0",
    "evaluation.prompts=4",
    "evaluation.periodic_prompts=2",
    "launch={device: cpu, processes: 1, threads: 1, engine: ddp}",
    "rollout.tokens.execution=eager",
)


@functools.cache
def random_janus_model() -> Path:
    """Directory of a tiny Janus whose weights are random."""
    folder = _folder() / "janus"
    sizes = random_janus.Sizes(patch=4)
    random_janus.build_model(sizes).save_pretrained(folder)
    random_janus.build_processor(sizes).save_pretrained(folder)
    return folder


def make_janus_run(folder: Path, recipe: str, overrides: Sequence[str] = ()) -> RunDirectory:
    """The same of a recipe of the Janus family, with prompts as the recipe makes them."""
    return make_recipe_run(
        folder, recipe, (f"policy.path={random_janus_model()}", *JANUS, *overrides)
    )


QWEN = (
    "policy={family: qwen, resolution: 64}",
    "rewards.ocr=null",
    "rewards.custom.grey={function: 'tests.support.grey:greyness', weight: 1.0}",
    "algorithm={kl: k3, beta: 0.02, clip_range: 0.2, mask_truncated: true, loss_mean: token}",
    "rollout.completion.max_tokens=10",
    "rollout.environment={condition_side: 64, reference_side: 64}",
    "rollout.num_inference_steps=2",
    "rollout.group_size=8",
    "rollout.micro_batch_size=8",
    "data.train_prompts=12",
    "data.heldout_prompts=4",
    "train.prompts_per_step=4",
    "train.updates_per_step=2",
    "train.steps=3",
    "train.learning_rate=1e-3",
    "train.checkpoint_every=1",
    "train.evaluate_every=0",
    "evaluation={prompts: 4, periodic_prompts: 2, num_inference_steps: 2}",
    "launch={device: cpu, processes: 1, threads: 1, engine: ddp}",
)


@functools.cache
def random_qwen_pipeline(kind: random_qwen.Kind, width: int = random_qwen.WIDTH) -> Path:
    """Directory of a tiny Qwen-Image whose weights are random, and whose completions may end."""
    import torch

    place = tempfile.mkdtemp(prefix="atelier-test-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    pipeline = random_qwen.build_pipeline(kind, width=width)
    with torch.no_grad():
        pipeline.text_encoder.lm_head.weight[random_qwen.END] *= 2
    folder = Path(place) / "qwen"
    pipeline.save_pretrained(folder)
    return folder


def make_qwen_run(
    folder: Path, kind: random_qwen.Kind = "text", overrides: Sequence[str] = ()
) -> RunDirectory:
    """The same of a policy that writes, for images or for edits."""
    own = [f"policy.path={random_qwen_pipeline(kind)}"]
    if kind == "edit":
        own += ["rollout.kind=edit", "data.scene_task=edit", "data.scene_kind=shapes"]
        own += ["evaluation.suite=editing"]
    return make_recipe_run(folder, "tiny/base", (*QWEN, *own, *overrides))


def make_recipe_run(folder: Path, recipe: str, overrides: Sequence[str] = ()) -> RunDirectory:
    """A run directory of a recipe, with the prompts that the recipe makes."""
    run = RunDirectory(folder)
    config: RunConfig = resolve(recipe=recipe, overrides=list(overrides))
    write_stage_configs(config, run)
    prepare(config.data, run.data)
    return run


def trainer_command(run: RunDirectory) -> list[str]:
    """What starts a trainer of one rank as a program."""
    return [sys.executable, "-m", "atelier.training", *_arguments(run)]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu", **extra}


def start(run: RunDirectory, processes: int = 1, **extra: str) -> Ranks:
    return Ranks(_arguments(run), processes, environment(**extra))


def train(run: RunDirectory, processes: int = 1, **extra: str) -> None:
    """Run the trainer to its end; its output is shown when it fails."""
    ranks = start(run, processes, **extra)
    assert set(ranks.wait()) == {0}, ranks.output[-5000:]


def _arguments(run: RunDirectory) -> list[str]:
    return ["--config", str(run.config("train")), "--run", str(run.root)]


def metrics(run: RunDirectory) -> list[dict[str, Any]]:
    """The metrics of a run without timings."""
    return results(run.metrics.read_text().splitlines())
