"""Every knob of the pre-training, each a command-line argument with the default that was used."""

# ruff: noqa: RUF009 - a knob is dataclasses.field with a help text

from dataclasses import dataclass
from pathlib import Path

from atelier.policies.deepgen.tiny.parts import AUTOENCODER, TOKENIZER
from atelier.policies.pretraining.options import PretrainingOptions, knob


@dataclass(frozen=True, kw_only=True)
class Options(PretrainingOptions):
    """Options of `train`."""

    budget_seconds: float = knob(420.0, "wall-clock time of the whole run")
    compile: bool = knob(True, "torch.compile the forward pass")

    start: Path | None = knob(None, "snapshot to go on from, by a new optimizer", type=Path)

    images: int = knob(120_000, "rendered training images")
    word_share: float = knob(0.55, "share of scenes that are one word")
    mixed_share: float = knob(0.10, "share of scenes with a word and shapes; the rest is shapes")
    word_lengths: tuple[int, ...] = knob(
        (3, 3, 3, 3, 3, 3, 3, 3, 2, 4), "lengths of words, drawn evenly from this list"
    )
    autoencoder: Path = knob(AUTOENCODER, "folder with the vae that is used", type=Path)
    tokenizer: Path = knob(TOKENIZER, "folder of the tokenizer", type=Path)

    batch: int = knob(768, "images a step")
    learning_rate: float = knob(1.2e-3, "AdamW, constant after the warm-up")
    weight_decay: float = knob(0.01, "of AdamW")
    ema_decay: float = knob(0.999, "decay of the averaged weights, which are what is saved")
    sigma_mean: float = knob(0.0, "mean of logit(sigma)")
    sigma_std: float = knob(1.2, "standard deviation of logit(sigma)")
    shift: float = knob(1.0, "shift of the saved scheduler")

    evaluate_seconds: float = knob(25.0, "time between evaluations")
    evaluate_prompts: int = knob(256, "held-out prompts of words, and as many of shapes")
    evaluate_steps: int = knob(8, "denoising steps of the evaluation")
    snapshot_at: tuple[float, ...] = knob(
        (0.50, 0.60, 0.70, 0.80), "similarities at which to save, besides the end"
    )
