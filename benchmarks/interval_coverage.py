"""How often a 95 % interval of a comparison misses the truth, by simulation.

    python benchmarks/interval_coverage.py

Two configurations that do not differ, 256 prompts, scores with noise of prompts (0.05), of seeds
(by row) and of the rest (0.2), as held-out OCR similarities have it. Columns: intervals of
evaluation/contrasts.py with paired and with unpaired seeds, and a bootstrap that resamples seeds
and prompts. The aim is 0.05.
"""

from __future__ import annotations

import numpy as np

from atelier.evaluation.contrasts import Floats, Groups

PROMPTS, TIMES, RESAMPLES = 256, 2000, 400


def simulated(rng: np.random.Generator, seeds: int, of_seeds: float) -> Floats:
    """Scores [2, seeds, prompts]; the standard deviations are of differences."""
    scale = 2**-0.5
    return (
        rng.normal(0, scale * of_seeds, (2, seeds, 1))
        + rng.normal(0, scale * 0.05, (2, 1, PROMPTS))
        + rng.normal(0, scale * 0.2, (2, seeds, PROMPTS))
    )


def bootstrap_misses(rng: np.random.Generator, scores: Floats) -> bool:
    """Whether the percentile interval over resampled seeds and prompts leaves 0 out."""
    difference = scores[1] - scores[0]
    means = []
    for _ in range(RESAMPLES):
        seeds = rng.integers(0, len(difference), len(difference))
        prompts = rng.integers(0, PROMPTS, PROMPTS)
        means.append(difference[np.ix_(seeds, prompts)].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    return bool(low > 0 or high < 0)


def main() -> None:
    rng = np.random.default_rng(1)
    print("seeds  sd of seeds  paired  unpaired  bootstrap")
    for seeds in (2, 3, 5):
        for of_seeds in (0.0, 0.01, 0.02, 0.05):
            missed = np.zeros(3)
            for _ in range(TIMES):
                scores = simulated(rng, seeds, of_seeds)
                for column, paired in enumerate((True, False)):
                    missed[column] += Groups(list(scores), paired).difference(0, 1).excludes_zero
                missed[2] += bootstrap_misses(rng, scores)
            paired, unpaired, resampled = missed / TIMES
            row = f"{paired:6.3f}  {unpaired:8.3f}  {resampled:9.3f}"
            print(f"{seeds:5d}  {of_seeds:11.2f}  {row}")


if __name__ == "__main__":
    main()
