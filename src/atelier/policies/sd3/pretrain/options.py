"""Every knob of the pre-training, each a command-line argument with the default that was used."""

# ruff: noqa: RUF009 - _knob is dataclasses.field with a help text

import argparse
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any


def _knob(default: Any, text: str, **arguments: Any) -> Any:
    if isinstance(default, tuple):
        arguments |= {"nargs": "+", "type": type(default[0])}
    elif isinstance(default, bool):
        arguments["action"] = argparse.BooleanOptionalAction
    elif "type" not in arguments:
        arguments["type"] = type(default)
    return field(default=default, metadata={"help": text, **arguments})


@dataclass(frozen=True)
class Options:
    """Options of `train`; lists of numbers are tuples, times are seconds."""

    out: Path = field(metadata={"help": "folder for snapshots and log.json", "type": Path})
    device: str = _knob("cuda", "torch device")
    seed: int = _knob(0, "seed of scenes, initial weights and noise")
    workers: int = _knob(16, "processes that render and read images")
    budget_seconds: float = _knob(490.0, "wall-clock time of the whole run")
    compile: bool = _knob(True, "torch.compile the training steps")

    images: int = _knob(120_000, "rendered training images")
    word_share: float = _knob(0.75, "share of scenes that are one word")
    mixed_share: float = _knob(0.10, "share of scenes with a word and shapes; the rest is shapes")
    word_lengths: tuple[int, ...] = _knob(
        (3, 3, 3, 3, 3, 3, 3, 3, 2, 4), "lengths of words, drawn evenly from this list"
    )

    vae: Path | None = _knob(None, "snapshot whose autoencoder is used, not trained", type=Path)
    vae_seconds: float = _knob(80.0, "time for the autoencoder")
    vae_steps: int = _knob(1_000_000, "most steps for the autoencoder")
    vae_batch: int = _knob(256, "images a step")
    vae_learning_rate: float = _knob(2e-3, "peak of a cosine with warm-up")
    vae_kl: float = _knob(2e-4, "weight of the KL to the unit normal, per latent element")
    vae_edge: float = _knob(1.0, "weight of the L1 distance of image gradients")

    patch_size: int = _knob(4, "latent pixels a side that one image token covers")
    heads: int = _knob(5, "attention heads of 24 dimensions each")

    batch: int = _knob(768, "latents a step")
    steps: int = _knob(1_000_000, "most steps for the transformer")
    learning_rate: float = _knob(1.2e-3, "AdamW, constant after the warm-up")
    warmup_steps: int = _knob(400, "linear warm-up of the learning rate")
    weight_decay: float = _knob(0.01, "of AdamW")
    clip_norm: float = _knob(1.0, "largest gradient norm")
    ema_decay: float = _knob(0.999, "decay of the averaged weights, which are what is saved")
    prompt_dropout: float = _knob(0.1, "share of empty prompts, for classifier-free guidance")
    sigma_mean: float = _knob(0.0, "mean of logit(sigma)")
    sigma_std: float = _knob(1.2, "standard deviation of logit(sigma)")
    shift: float = _knob(1.0, "shift of the saved scheduler")

    evaluate_every: int = _knob(500, "steps between evaluations")
    evaluate_prompts: int = _knob(512, "held-out word prompts")
    evaluate_steps: tuple[int, ...] = _knob((8, 10), "denoising steps; the first one decides")
    snapshot_at: tuple[float, ...] = _knob(
        (0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80), "similarities at which to save"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One argument a field: `--budget-seconds` for `budget_seconds`."""
    for item in fields(Options):
        required = item.default is MISSING
        parser.add_argument(
            "--" + item.name.replace("_", "-"),
            required=required,
            default=None if required else item.default,
            **item.metadata,
        )


def from_arguments(namespace: argparse.Namespace) -> Options:
    """The options that `add_arguments` parsed."""
    values: dict[str, Any] = {item.name: getattr(namespace, item.name) for item in fields(Options)}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Options(**{**values, **lists})
