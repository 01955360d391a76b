"""Bring the mirrors of the runs named on the command line up to date; 0 if all are."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from atelier.tracking.mirrors import close, sync
from atelier.tracking.run_directory import RunDirectory


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    runs = [RunDirectory(Path(name).resolve()) for name in sys.argv[1:]]
    done = [sync(run) for run in runs]
    for run in runs:
        close(run)
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
