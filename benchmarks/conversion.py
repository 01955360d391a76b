"""What an engine's shards become: a trained DeepGen is evaluated, exported, and made a file again.

    python -m benchmarks.scaling --out DIR --case deepgen --ranks 2 --work weak --engines zero2 \\
        --finish
    python -m benchmarks.conversion DIR/scaling-runs/deepgen-published-zero2-2-4

Evaluates and exports a finished run by `atelier stage`, then makes of it the file that fine-tuning
starts from (`atelier export sft`), which is read back. Prints seconds and GiB as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from atelier.config.resolve import load_stage_config
from atelier.errors import ConfigError
from atelier.tracking.run_directory import RunDirectory, all_checkpoints
from benchmarks.children import finish
from benchmarks.options import exit_code_of
from benchmarks.progress import now

FILE = "sft.pth"


def atelier(*words: str) -> None:
    """A command of ours.

    Raises:
        SystemExit: it failed.
    """
    now(f"atelier {' '.join(words)}")
    finish([sys.executable, "-m", "atelier", *words], HF_HUB_OFFLINE="1")


def require_convertible(run: RunDirectory) -> None:
    """Before anything is evaluated, which takes long.

    Raises:
        ConfigError: it is no run of DeepGen that was trained and saved, or was converted already.
    """
    config = load_stage_config(run.config("train"))
    if config.policy.family != "deepgen":
        raise ConfigError(f"{run.root}: a run of {config.policy.family}; name one of deepgen")
    if not all_checkpoints(run.checkpoints):
        raise ConfigError(f"{run.root}: has no checkpoint; train it with --finish")
    if (file := run.root / FILE).exists():
        raise ConfigError(f"{file}: is there already; move it aside to measure again")


def converted(run: Path) -> dict[str, float]:
    """Seconds of each part, and the size of the file."""
    began = time.monotonic()
    for stage in ("baseline", "evaluate", "export"):
        atelier("stage", stage, "--run", str(run))
    exported = time.monotonic()
    file = run / FILE
    atelier("export", "sft", str(run), str(file))
    return {
        "evaluate_and_export": round(exported - began, 1),
        "sft": round(time.monotonic() - exported, 1),
        "gib": round(file.stat().st_size / 2**30, 2),
    }


def measure(run: Path) -> int:
    require_convertible(RunDirectory(run))
    print(json.dumps(converted(run)))
    return 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    run = parser.parse_args(words).run.resolve()
    return exit_code_of(lambda: measure(run))


if __name__ == "__main__":
    sys.exit(main())
