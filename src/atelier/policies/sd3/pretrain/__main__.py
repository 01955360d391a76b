"""Command line of the pre-training: `train` makes snapshots, `promote` installs one of them."""

import sys

from atelier.policies.pretraining.command_line import Program, Training, main
from atelier.policies.sd3.pretrain.options import Options

PROGRAM = Program(
    package="atelier.policies.sd3.pretrain",
    trainings={"train": Training(Options, "render, train the autoencoder and the transformer")},
    heldout=("prompts", 128, "held-out words to measure on"),
)

if __name__ == "__main__":
    sys.exit(main(PROGRAM))
