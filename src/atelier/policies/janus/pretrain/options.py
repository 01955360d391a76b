"""Every knob of the pre-training, each a command-line argument with the default that was used."""

# ruff: noqa: RUF009 - a knob is dataclasses.field with a help text

from dataclasses import dataclass
from pathlib import Path

from atelier.policies.pretraining.options import PretrainingOptions, knob


@dataclass(frozen=True, kw_only=True)
class Options(PretrainingOptions):
    """Options of `train`."""

    record: bool = knob(True, "record training steps on the GPU and play them back")

    cases: int = knob(100_000, "scenes of the training split, with another and an edit each")
    heldout: int = knob(512, "scenes of the held-out split to evaluate on")

    vq: Path | None = knob(None, "snapshot whose image tokenizer is the start", type=Path)
    vq_seconds: float = knob(75.0, "time for the image tokenizer; 0: as it is")
    vq_steps: int = knob(1_000_000, "most steps for the image tokenizer")
    vq_batch: int = knob(128, "images a step")
    vq_learning_rate: float = knob(2e-3, "peak of a cosine with warm-up")

    patch_size: int = knob(8, "pixels a side that one image token covers")
    vq_blocks: int = knob(1, "residual blocks at each resolution of the image tokenizer")
    codes: int = knob(256, "size of the codebook")
    width: int = knob(160, "of the language model")
    layers: int = knob(6, "of the language model")
    heads: int = knob(5, "of the language model")
    feed_forward: int = knob(320, "width between the layers of the language model")

    draw: int = knob(256, "conversations a step: drawing")
    judge: int = knob(128, "judging a drawing")
    ask: int = knob(64, "yes/no questions about a scene")
    describe: int = knob(96, "descriptions of a scene: they teach to see")
    redraw: int = knob(128, "drawing again after a verdict")
    edit: int = knob(160, "editing")

    cooldown: float = knob(0.25, "share of the time over which the learning rate falls at the end")
    own_images: int = knob(9_216, "images that the model draws itself, to judge and to redraw")
    own_at: tuple[float, ...] = knob((0.4, 0.7), "shares of the time at which it draws them anew")

    evaluate_seconds: float = knob(45.0, "time between evaluations, each with a snapshot")
