"""Held-out images of given weights, scored: what baseline and evaluate share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.data.prompts import read_prompts
from atelier.errors import DataError
from atelier.evaluation.evaluate import evaluate
from atelier.evaluation.files import (
    read_completions,
    read_images,
    write_images,
    write_results,
)
from atelier.evaluation.requests import ImageRequest, evaluated, image_requests, kind_for, usable
from atelier.evaluation.results import Evaluation
from atelier.policies.base import Generated, Policy
from atelier.policies.registry import load_policy
from atelier.stages.suite_judges import judge_of_stage
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import join_world
from atelier.training.weights import put_weights

logger = logging.getLogger(__name__)

SAY_EVERY_SECONDS = 15.0


def evaluate_weights(
    run: RunDirectory, config: RunConfig, folder: Path, weights: Mapping[str, Tensor] | None
) -> Evaluation:
    """Generate the suite's images with fixed noise per prompt, score them, write `folder`.

    Args:
        weights: trained tensors by parameter name; None evaluates the model as it was loaded.
    """
    heldout = read_prompts(run.data / "heldout.parquet")
    prompts = evaluated(heldout, config.evaluation, config.evaluation.prompts)
    unusable = len(heldout) - len(usable(heldout, config.evaluation))
    if unusable:
        logger.info(
            "%d held-out prompts are left out: no %s", unusable, kind_for(config.evaluation)
        )
    requests = image_requests(prompts, config.evaluation)
    files = [one.file for one in requests]
    images = _left_there(folder, files)
    if images is None:
        with _policy(config, [prompt.text for prompt in prompts]) as policy:
            if weights is not None:
                put_weights(policy.trainable(), weights)
            made = _generate(policy, requests, config)
        write_images(folder, files, made.images, made.completions)
        images = made.images
    with judge_of_stage(run, config, folder) as judge:
        completions = read_completions(folder, files)
        found = evaluate(images, prompts, config.evaluation, judge, completions)
        evaluation = Evaluation(found.rows, found.summary | {"unusable_prompts": unusable})
        write_results(folder, evaluation, images)
    return evaluation


def _left_there(folder: Path, files: Sequence[str]) -> NDArray[np.uint8] | None:
    """The images of an attempt that was ended while they were scored, which a stage's folder holds
    for an equal configuration only; None where they are not all there."""
    if not (folder / "images").is_dir():
        return None
    try:
        images = read_images(folder, files)
    except DataError as error:
        logger.info("held-out images are generated anew: %s", error)
        return None
    logger.info("%d held-out images are there from before", len(images))
    return images


class Progress:
    """How many images there are, in lines: the first as soon as it is seen that it will take long,
    then every so often, and the last when all are there. Nothing where it takes no time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._begun = self._said = time.monotonic()
        self._speaks = False

    def line(self, done: int) -> str | None:
        """What to say when `done` images are made, if anything."""
        now = time.monotonic()
        left = (now - self._begun) / done * (self._count - done)
        begins = not self._speaks and now - self._begun + left > SAY_EVERY_SECONDS and left > 0
        is_due = now - self._said > SAY_EVERY_SECONDS or done == self._count
        if not begins and not (self._speaks and is_due):
            return None
        self._speaks, self._said = True, now
        rest = f"; {left:.0f} s left" if done < self._count else f" in {now - self._begun:.0f} s"
        return f"generated {done} of {self._count} held-out images{rest}"


@contextmanager
def _policy(config: RunConfig, prompts: Sequence[str]) -> Iterator[Policy]:
    """The policy on the run's device, given back afterwards: the trainer needs the memory."""
    with join_world(config.launch) as world:
        # As many threads as a rank of the trainer has: sums come out equal, and small operations
        # are not shared out among threads that wait for each other.
        torch.set_num_threads(config.launch.threads_of_a_rank)
        try:
            with closing(load_policy(config, world.device, prompts=prompts)) as policy:
                yield policy
        finally:
            if world.device.type == "cuda":
                torch.cuda.empty_cache()


def _generate(policy: Policy, requests: Sequence[ImageRequest], config: RunConfig) -> Generated:
    """The images in their order; says how far it is where that takes long."""
    size, count = config.evaluation.micro_batch_size, len(requests)
    parts, progress = [], Progress(count)
    for start in range(0, len(requests), size):
        chunk = requests[start : start + size]
        keys = [one.key(config.evaluation.seed) for one in chunk]
        parts.append(policy.generate(policy.module, [one.prompt for one in chunk], keys))
        if (line := progress.line(start + len(chunk))) is not None:
            logger.info("%s", line)
    return Generated.joined(parts)
