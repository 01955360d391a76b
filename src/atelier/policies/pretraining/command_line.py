"""Command line of a pre-training: `train` makes snapshots, `promote` installs one of them."""

import argparse
import logging
import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from atelier.errors import AtelierError
from atelier.policies.pretraining.options import (
    PretrainingOptions,
    add_arguments,
    from_arguments,
)


@dataclass(frozen=True)
class Program:
    """One pre-training.

    Attributes:
        package: has `run.pretrain(options)` and `promote.promote_snapshot(snapshot, target, N)`.
        options: of `train`.
        trains: what `train` does.
        heldout: name, default and help of the option that says how much `promote` measures on.
    """

    package: str
    options: type[PretrainingOptions]
    trains: str
    heldout: tuple[str, int, str]


def main(program: Program, arguments: list[str] | None = None) -> int:
    """Run a verb; the exit code is 0, or that of the error, whose message goes to stderr."""
    parser = argparse.ArgumentParser(prog=f"python -m {program.package}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train", help=program.trains)
    add_arguments(train, program.options)
    promote = verbs.add_parser("promote", help="copy a snapshot, measure it, write its card")
    promote.add_argument("snapshot", type=Path)
    promote.add_argument("target", type=Path)
    name, default, text = program.heldout
    promote.add_argument(f"--{name}", dest="heldout", type=int, default=default, help=text)
    parsed = parser.parse_args(arguments)

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    verb: Any = import_module(f"{program.package}.{_MODULES[parsed.verb]}")
    try:
        if parsed.verb == "train":
            verb.pretrain(from_arguments(parsed, program.options))
        else:
            verb.promote_snapshot(parsed.snapshot, parsed.target, parsed.heldout)
    except AtelierError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


_MODULES = {"train": "run", "promote": "promote"}
