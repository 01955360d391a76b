"""Command line of the pre-training: `train` makes snapshots, `promote` installs one of them."""

import argparse
import logging
import os
import sys
from pathlib import Path

from atelier.errors import AtelierError
from atelier.policies.pretraining.options import add_arguments, from_arguments
from atelier.policies.sd3.pretrain.options import Options


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; the exit code is 0, or that of the error, whose message goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m atelier.policies.sd3.pretrain")
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="render, train the autoencoder and the transformer")
    add_arguments(train, Options)
    promote = verbs.add_parser("promote", help="copy a snapshot, measure it, write its card")
    promote.add_argument("snapshot", type=Path)
    promote.add_argument("target", type=Path)
    promote.add_argument("--prompts", type=int, default=128, help="held-out words to measure on")
    parsed = parser.parse_args(arguments)

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    from diffusers.utils import logging as diffusers_logging

    diffusers_logging.set_verbosity_error()
    try:
        if parsed.verb == "train":
            from atelier.policies.sd3.pretrain.run import pretrain

            pretrain(from_arguments(parsed, Options))
        else:
            from atelier.policies.sd3.pretrain.promote import promote_snapshot

            promote_snapshot(parsed.snapshot, parsed.target, parsed.prompts)
    except AtelierError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
