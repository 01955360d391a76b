"""The trainer's entry point, one process a rank.

    python -m atelier.training --config RUN/config/train.yaml --run RUN
    torchrun --standalone --nproc-per-node 2 -m atelier.training --config ... --run ...

Exit codes: 0 done; 2 bad configuration; 3 plan refused; 75 stopped, resumable; else a crash.
`python -m atelier.processes.torchrun` keeps them for several ranks; plain torchrun says 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from atelier import telemetry
from atelier.config.paths import without_machine_paths
from atelier.errors import AtelierError
from atelier.processes.console import shorten_paths
from atelier.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from atelier.training.trainer import Around


INTERRUPTED = 130  # as a shell says it


def main(around: Around = contextlib.nullcontext) -> int:
    """Train as the command line says, and return the exit code.

    Args:
        around: what each step is done inside of.
    """
    parser = argparse.ArgumentParser(prog="python -m atelier.training", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="resolved train.yaml")
    parser.add_argument("--run", type=Path, required=True, help="run directory")
    arguments = parser.parse_args()
    telemetry.off_by_default()
    shorten_paths(arguments.run.resolve())
    # Torch comes after the arguments are known to be good. Imports allocate much and free nothing:
    # without collections they are a sixth faster, and no later collection looks through them.
    gc.disable()
    if os.environ.get("RANK", "0") == "0":
        sys.stdout.write("loading libraries and model; the first step begins after that\n")
        sys.stdout.flush()
    from atelier.training.worker import train

    gc.freeze()
    gc.enable()
    try:
        train(arguments.config, RunDirectory(arguments.run), around)
    except AtelierError as error:
        # The log may lie on the very disk that is full: the exit code says it then.
        with contextlib.suppress(OSError):
            message = without_machine_paths(str(error), arguments.run.resolve())
            sys.stderr.write(f"{type(error).__name__}: {message}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write(
            "interrupted; what was saved before is whole, and a resume goes on from it\n"
        )
        return INTERRUPTED
    return 0


def end(code: int) -> NoReturn:
    """End the process with this code, although a scorer may still be reading an image: a thread
    that comes back from native code while the interpreter ends would abort the process."""
    from atelier.rewards.threads import are_scoring

    if are_scoring():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    end(main())
