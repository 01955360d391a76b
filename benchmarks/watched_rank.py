"""A rank of a training run, one of whose steps is profiled: benchmarks/scaling.py starts it.

    python -m benchmarks.watched_rank --config RUN/config/train.yaml --run RUN

It is `python -m atelier.training`. Rank 0 writes what communication.py says of the step whose
number is in PROFILED_STEP, counted from 1, into RUN/train/communication.json.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atelier.tracking.run_directory import RunDirectory, write_json
from atelier.training.__main__ import main

if TYPE_CHECKING:
    from atelier.training.measures import Stopwatch

STEP = "PROFILED_STEP"
FOUND = "communication.json"


@dataclass
class OneStep:
    """`around` of a trainer: looks on at one of its steps."""

    step: int
    file: Path
    _begun: int = 0

    @contextmanager
    def __call__(self, watch: Stopwatch) -> Iterator[None]:
        self._begun += 1
        if self._begun != self.step:
            yield
            return
        from benchmarks.communication import profiled

        with profiled(watch) as found:
            yield
        write_json(self.file, found)


def watched() -> int:
    """Its exit code is the trainer's."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--run", type=Path, required=True)
    run = RunDirectory(parser.parse_known_args()[0].run)
    if os.environ.get("RANK", "0") != "0":
        return main()
    return main(OneStep(int(os.environ[STEP]), run.train / FOUND))


if __name__ == "__main__":
    sys.exit(watched())
