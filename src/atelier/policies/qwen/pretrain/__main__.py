"""Command line of the pre-training: three trainings, and `promote`, which installs a pipeline."""

import sys

from atelier.policies.pretraining.command_line import Program, Training, main
from atelier.policies.qwen.pretrain.options import (
    AutoencoderOptions,
    PainterOptions,
    WriterOptions,
)

PROGRAM = Program(
    package="atelier.policies.qwen.pretrain",
    trainings={
        "autoencoder": Training(
            AutoencoderOptions, "render, train the autoencoder", "pretrain_autoencoder"
        ),
        "writer": Training(
            WriterOptions, "write riddles, train the language model", "pretrain_writer"
        ),
        "painter": Training(
            PainterOptions, "train the transformer beside the two", "pretrain_painter"
        ),
    },
    heldout=("heldout", 256, "held-out prompts to measure on"),
)

if __name__ == "__main__":
    sys.exit(main(PROGRAM))
