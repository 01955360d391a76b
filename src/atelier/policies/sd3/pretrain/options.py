"""Every knob of the pre-training, each a command-line argument with the default that was used."""

# ruff: noqa: RUF009 - a knob is dataclasses.field with a help text

from dataclasses import dataclass
from pathlib import Path

from atelier.policies.pretraining.options import PretrainingOptions, knob


@dataclass(frozen=True, kw_only=True)
class Options(PretrainingOptions):
    """Options of `train`."""

    workers: int = knob(16, "processes that render and read images")
    budget_seconds: float = knob(490.0, "wall-clock time of the whole run")

    images: int = knob(120_000, "rendered training images")
    word_share: float = knob(0.75, "share of scenes that are one word")
    mixed_share: float = knob(0.10, "share of scenes with a word and shapes; the rest is shapes")
    word_lengths: tuple[int, ...] = knob(
        (3, 3, 3, 3, 3, 3, 3, 3, 2, 4), "lengths of words, drawn evenly from this list"
    )

    vae: Path | None = knob(None, "snapshot whose autoencoder is used, not trained", type=Path)
    vae_seconds: float = knob(80.0, "time for the autoencoder")
    vae_steps: int = knob(1_000_000, "most steps for the autoencoder")
    vae_batch: int = knob(256, "images a step")
    vae_learning_rate: float = knob(2e-3, "peak of a cosine with warm-up")
    vae_kl: float = knob(2e-4, "weight of the KL to the unit normal, per latent element")
    vae_edge: float = knob(1.0, "weight of the L1 distance of image gradients")

    patch_size: int = knob(4, "latent pixels a side that one image token covers")
    heads: int = knob(5, "attention heads of 24 dimensions each")

    batch: int = knob(768, "latents a step")
    learning_rate: float = knob(1.2e-3, "AdamW, constant after the warm-up")
    weight_decay: float = knob(0.01, "of AdamW")
    ema_decay: float = knob(0.999, "decay of the averaged weights, which are what is saved")
    sigma_mean: float = knob(0.0, "mean of logit(sigma)")
    sigma_std: float = knob(1.2, "standard deviation of logit(sigma)")
    shift: float = knob(1.0, "shift of the saved scheduler")

    evaluate_every: int = knob(500, "steps between evaluations")
    evaluate_prompts: int = knob(512, "held-out word prompts")
    evaluate_steps: tuple[int, ...] = knob((8, 10), "denoising steps; the first one decides")
    snapshot_at: tuple[float, ...] = knob(
        (0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80), "similarities at which to save"
    )
