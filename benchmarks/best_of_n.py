"""What the untrained model gives when the best of n images is kept: the baseline RL has to beat.

    python benchmarks/best_of_n.py --recipe tiny/flow-grpo-fast --images 16

For each held-out prompt, draws --images images with the evaluation's sampler, scores them, and
prints the expected best of n for n = 1, 2, 4, ... exactly (over all subsets): chosen by the reward
and reported in the reward, and chosen by the reward and reported in gold. Choosing costs n images
and a scorer at every use; a trained model costs one image and no scorer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from atelier.config.resolve import resolve
from atelier.data.keys import key
from atelier.data.prepare import prepare
from atelier.data.prompts import read_prompts
from atelier.evaluation.evaluate import evaluate
from atelier.evaluation.statistics import best_of_n
from atelier.policies.sd3.policy import SD3Policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="tiny/flow-grpo-fast")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--images", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = resolve(arguments.recipe, arguments.overrides)
    with tempfile.TemporaryDirectory() as folder:
        prepare(config.data, Path(folder))
        prompts = read_prompts(Path(folder) / "heldout.parquet")[: config.evaluation.prompts]
    policy = SD3Policy.load(config, "cpu")
    scores: dict[str, list[list[float]]] = {"similarity": [], "gold": []}
    for draw in range(arguments.images):
        keys = [key("best-of-n", draw, prompt.prompt_id) for prompt in prompts]
        images = policy.generate(policy.module, prompts, keys)
        rows = evaluate(images, prompts, config.evaluation).rows
        for name, values in scores.items():
            values.append([row[name] for row in rows])
        sys.stderr.write(f"drew {draw + 1} of {arguments.images}\n")
    table = {name: np.array(values).T for name, values in scores.items()}
    sys.stdout.write("n   similarity   gold of the chosen\n")
    n = 1
    while n <= arguments.images:
        similarity = best_of_n(table["similarity"], n)
        gold = best_of_n(table["gold"], n, by=table["similarity"])
        sys.stdout.write(f"{n:<3} {similarity:.3f}        {gold:.3f}\n")
        n *= 2


if __name__ == "__main__":
    main()
