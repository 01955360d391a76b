"""Send what is missing of the runs named on the command line; 0 if all was sent."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from atelier.tracking.mlflow_mirror import sync
from atelier.tracking.run_directory import RunDirectory


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    done = [sync(RunDirectory(Path(name).resolve()), 600.0) for name in sys.argv[1:]]
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
