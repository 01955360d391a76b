"""What a fault of a reward service costs: what its user sees, and how long until scores come again.

    PYTHONPATH=. python benchmarks/reward_faults.py [--rounds 3]

The faults of tests/support/fault_grid.py, on real processes. While a fault lasts (some 3 s), four
batches give up after 3 s, and a request after 1 s: their scores must be right or missing. Another
batch waits; recovery is the seconds from the mending to its scores, the start of a killed service
not counted. Prints a table in Markdown; ends with an error where a score is wrong.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections import Counter
from pathlib import Path

from atelier.rewards import Missing
from tests.support.fault_grid import GRID, RIGHT, Outcome, outcome, right_or_missing, site

IMPATIENCE = 3.0  # seconds


def row(name: str, outcomes: list[Outcome]) -> str:
    """A row of the table: fault, what is seen, images that had a score, recovery."""
    scores = [score for found in outcomes for batch in found.during for score in batch]
    scored = sum(not isinstance(score, Missing) for score in scores)
    reasons = Counter(_anywhere(one.reason) for one in scores if isinstance(one, Missing))
    ((reason, _),) = reasons.most_common(1)
    seconds = [max(0.0, found.recovery) for found in outcomes]
    times = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
    return f"| {name} | `{reason[:110]}` | {scored} of {len(scores)} | {times} |"


def _anywhere(reason: str) -> str:
    """Without the address and the number of times."""
    return re.sub(r"http://127\.0\.0\.1:\d+: | \(asked \d+ times\)", "", reason)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| fault | what is seen | scores meanwhile, all right | seconds to recover |")
    print("|---|---|---|---|")
    for name, fault in GRID.items():
        with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as place:
            outcomes = [outcome(place, fault, IMPATIENCE) for _ in range(options.rounds)]
        for found in outcomes:
            assert found.after == RIGHT[0], name
            assert all(map(right_or_missing, found.during, RIGHT)), name
        print(row(name, outcomes), flush=True)


if __name__ == "__main__":
    main()
