"""Every knob of the trainings, each a command-line argument with the default that was used."""

# ruff: noqa: RUF009 - a knob is dataclasses.field with a help text

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atelier.policies.pretraining.options import PretrainingOptions, knob, needed

Kind = Literal["text", "edit"]


@dataclass(frozen=True, kw_only=True)
class AutoencoderOptions(PretrainingOptions):
    """Options of `autoencoder`."""

    budget_seconds: float = knob(130.0, "wall-clock time of the whole training")
    images: int = knob(60_000, "rendered training images")
    heldout: int = knob(512, "held-out images to measure on")
    batch: int = knob(256, "images a step")
    learning_rate: float = knob(2e-3, "peak of a cosine with warm-up")
    weight_decay: float = knob(0.0, "of AdamW")
    ema_decay: float = knob(0.998, "decay of the averaged weights, which are what is saved")
    kl: float = knob(2e-4, "weight of the KL to the unit normal, per latent element")
    edge: float = knob(1.0, "weight of the L1 distance of image gradients")


@dataclass(frozen=True, kw_only=True)
class WriterOptions(PretrainingOptions):
    """Options of `writer`."""

    kind: Kind = knob("text", "what it writes for", choices=("text", "edit"))
    tokenizer: Path = knob(
        Path("assets/tiny-qwen-image/tokenizer"), "folder of the tokenizer", type=Path
    )
    budget_seconds: float = knob(130.0, "wall-clock time of the whole training")
    cases: int = knob(60_000, "scenes or edits of the training split")
    readings: int = knob(5, "completions of each")
    known: tuple[float, ...] = knob(
        (0.99, 0.96, 0.55), "how often the first, second and third clue of a name is read right"
    )
    looking: float = knob(0.2, "share of rows that ask what is in the picture (edit)")
    echo: float = knob(0.3, "weight of telling the last written token from the hidden states")
    heldout: int = knob(512, "held-out prompts to measure on")
    batch: int = knob(512, "conversations a step")
    learning_rate: float = knob(2e-3, "peak of a cosine with warm-up")
    warmup_steps: int = knob(200, "linear warm-up of the learning rate")
    ema_decay: float = knob(0.998, "decay of the averaged weights, which are what is saved")


@dataclass(frozen=True, kw_only=True)
class PainterOptions(PretrainingOptions):
    """Options of `painter`."""

    kind: Kind = knob("text", "what it paints", choices=("text", "edit"))
    autoencoder: Path = needed("folder that `autoencoder` left", type=Path)
    writer: Path = needed("folder that `writer` left", type=Path)
    start: Path | None = knob(None, "pipeline whose transformer it begins with", type=Path)
    budget_seconds: float = knob(330.0, "wall-clock time of the whole training")
    cases: int = knob(60_000, "scenes or edits of the training split")
    tellings: int = knob(4, "conversations about each")
    layers: int = knob(4, "layers of the transformer")
    batch: int = knob(1024, "images a step")
    learning_rate: float = knob(1.5e-3, "peak of a cosine with warm-up")
    weight_decay: float = knob(0.01, "of AdamW")
    ema_decay: float = knob(0.999, "decay of the averaged weights, which are what is saved")
    drift: float = knob(0.05, "noise on the hidden states, in shares of their size")
    record: bool = knob(False, "record a step on the GPU and play it back")
    evaluate_seconds: float = knob(25.0, "time between evaluations")
    heldout: int = knob(256, "held-out prompts to measure on")
