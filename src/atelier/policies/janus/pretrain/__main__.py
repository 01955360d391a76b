"""Command line of the pre-training: `train` makes snapshots, `promote` installs one of them."""

import argparse
import logging
import os
import sys
from pathlib import Path

from atelier.errors import AtelierError
from atelier.policies.janus.pretrain.options import Options
from atelier.policies.pretraining.options import add_arguments, from_arguments


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; the exit code is 0, or that of the error, whose message goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m atelier.policies.janus.pretrain")
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help="render, train the image tokenizer and all else")
    add_arguments(train, Options)
    promote = verbs.add_parser("promote", help="copy a snapshot, measure it, write its card")
    promote.add_argument("snapshot", type=Path)
    promote.add_argument("target", type=Path)
    promote.add_argument("--heldout", type=int, default=256, help="held-out scenes to measure on")
    parsed = parser.parse_args(arguments)

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    try:
        if parsed.verb == "train":
            from atelier.policies.janus.pretrain.run import pretrain

            pretrain(from_arguments(parsed, Options))
        else:
            from atelier.policies.janus.pretrain.promote import promote_snapshot

            promote_snapshot(parsed.snapshot, parsed.target, parsed.heldout)
    except AtelierError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
