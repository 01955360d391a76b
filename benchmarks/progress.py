"""What a benchmark does next, on stderr: its results, on stdout, can be minutes apart."""

from __future__ import annotations

import sys
import time


def now(what: str) -> None:
    """Tell it, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)
