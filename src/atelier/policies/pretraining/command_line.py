"""Command line of a pre-training: `train` makes snapshots, `promote` installs one of them. Where
several models are trained one after the other, each has a verb of its own."""

import argparse
import logging
import os
import sys
from collections.abc import Mapping
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
class Training:
    """One training.

    Attributes:
        options: what it is told.
        help: what it does.
        function: of the package's module `run`.
    """

    options: type[PretrainingOptions]
    help: str
    function: str = "pretrain"


@dataclass(frozen=True)
class Program:
    """One pre-training.

    Attributes:
        package: has `run` with the trainings and `promote.promote_snapshot(snapshot, target, N)`.
        trainings: by verb.
        heldout: name, default and help of the option that says how much `promote` measures on.
    """

    package: str
    trainings: Mapping[str, Training]
    heldout: tuple[str, int, str]


def main(program: Program, arguments: list[str] | None = None) -> int:
    """Run a verb; the exit code is 0, or that of the error, whose message goes to stderr."""
    parser = argparse.ArgumentParser(prog=f"python -m {program.package}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, training in program.trainings.items():
        add_arguments(verbs.add_parser(verb, help=training.help), training.options)
    promote = verbs.add_parser("promote", help="copy a snapshot, measure it, write its card")
    promote.add_argument("snapshot", type=Path)
    promote.add_argument("target", type=Path)
    name, default, text = program.heldout
    promote.add_argument(f"--{name}", dest="heldout", type=int, default=default, help=text)
    parsed = parser.parse_args(arguments)

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    try:
        if parsed.verb == "promote":
            module: Any = import_module(f"{program.package}.promote")
            module.promote_snapshot(parsed.snapshot, parsed.target, parsed.heldout)
        else:
            training = program.trainings[parsed.verb]
            module = import_module(f"{program.package}.run")
            getattr(module, training.function)(from_arguments(parsed, training.options))
    except AtelierError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0
