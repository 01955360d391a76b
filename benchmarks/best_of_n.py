"""What the untrained model gives when the best of n images is kept: the baseline RL has to beat.

    python benchmarks/best_of_n.py --recipe tiny/flow-grpo-fast --images 16
    python benchmarks/best_of_n.py --recipe tiny-qwen/mmmg-lora --by judge_mmmg --report gold_mmmg

For each held-out prompt, draws --images images with the evaluation's sampler, scores them by the
recipe's suite, and prints the expected best of n for n = 1, 2, 4, ... exactly (over all subsets):
chosen by a score and reported in it, and in others. Choosing costs n images and a scorer at every
use; a trained model costs one image and no scorer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.data.prepare import prepare
from atelier.data.prompts import Prompt, read_prompts
from atelier.evaluation.evaluate import evaluate
from atelier.evaluation.judging import suite_judge
from atelier.evaluation.requests import image_requests
from atelier.evaluation.statistics import best_of_n
from atelier.policies.registry import load_policy
from atelier.rewards.registry import reachable_judges


def rows_of_draws(
    config: RunConfig, prompts: list[Prompt], draws: int, device: str, answers: Path
) -> Iterator[list[dict[str, Any]]]:
    """The scored rows of every draw, an image a prompt, each from noise of its own."""
    policy = load_policy(config, device, prompts=[one.text for one in prompts])
    requests = image_requests(prompts, config.evaluation)
    asked = [one for one in (config.evaluation.judge,) if one is not None]
    with suite_judge(config, reachable_judges(config.judges, {}, asked), answers) as judge:
        for draw in range(draws):
            keys = [one.key(config.evaluation.seed + draw) for one in requests]
            made = policy.generate(policy.module, [one.prompt for one in requests], keys)
            found = evaluate(made.images, prompts, config.evaluation, judge)
            yield [dict(one) for one in found.rows]
            sys.stderr.write(f"drew {draw + 1} of {draws}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="tiny/flow-grpo-fast")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--by", default="similarity", help="score that the best is chosen by")
    parser.add_argument("--report", nargs="*", default=["gold"], help="scores of the chosen")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = resolve(arguments.recipe, arguments.overrides)
    with tempfile.TemporaryDirectory() as folder:
        prepare(config.data, Path(folder))
        prompts = read_prompts(Path(folder) / "heldout.parquet")[: config.evaluation.prompts]
        answers = Path(folder) / "answers"
        drawn = list(rows_of_draws(config, prompts, arguments.images, arguments.device, answers))
    names = [arguments.by, *arguments.report]
    table = {name: np.array([[row[name] for row in rows] for rows in drawn]).T for name in names}
    sys.stdout.write("   ".join(["n  ", *names]) + "\n")
    n = 1
    while n <= arguments.images:
        best = [best_of_n(table[name], n, by=table[arguments.by]) for name in names]
        sys.stdout.write(f"{n:<6}" + "   ".join(f"{value:.3f}" for value in best) + "\n")
        n *= 2


if __name__ == "__main__":
    main()
