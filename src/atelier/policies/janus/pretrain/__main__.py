"""Command line of the pre-training: `train` makes snapshots, `promote` installs one of them."""

import sys

from atelier.policies.janus.pretrain.options import Options
from atelier.policies.pretraining.command_line import Program, Training, main

PROGRAM = Program(
    package="atelier.policies.janus.pretrain",
    trainings={"train": Training(Options, "render, train the image tokenizer and all else")},
    heldout=("heldout", 256, "held-out scenes to measure on"),
)

if __name__ == "__main__":
    sys.exit(main(PROGRAM))
