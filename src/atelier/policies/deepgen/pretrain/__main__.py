"""Command line of the pre-training: `train` makes snapshots, `promote` installs one of them."""

import sys

from atelier.policies.deepgen.pretrain.options import Options
from atelier.policies.pretraining.command_line import Program, Training, main

PROGRAM = Program(
    package="atelier.policies.deepgen.pretrain",
    trainings={"train": Training(Options, "render, train language model, connector, transformer")},
    heldout=("prompts", 256, "held-out prompts to measure on"),
)

if __name__ == "__main__":
    sys.exit(main(PROGRAM))
