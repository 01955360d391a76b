"""Held-out images to an evaluation, by the suite of the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.prompts import Prompt
from atelier.evaluation.files import read_completions, read_images, write_results
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import image_requests
from atelier.evaluation.results import Evaluation, summarize
from atelier.evaluation.suite import Images, Rows
from atelier.evaluation.suites import SUITES


def evaluate(
    images: Images,
    prompts: Sequence[Prompt],
    config: EvaluationConfig,
    judge: SuiteJudge | None = None,
    completions: Sequence[str | None] | None = None,
) -> Evaluation:
    """Score images uint8 [N, H, W, 3], those that `image_requests` asks for, in its order.

    Args:
        judge: the one that the suite asks, if it asks one.
        completions: what was written before each image, which rows then have as `completion`. It
            is for people: no suite scores it.

    Raises:
        ValueError: not as many images as the suite asks for, or not uint8 [N, H, W, 3].
        DataError, ConfigError, Stopped: see the suite.
    """
    requests = image_requests(prompts, config)
    if len(images) != len(requests):
        raise ValueError(f"{len(images)} images, but the suite asks for {len(requests)}")
    suite, samples = SUITES[config.suite], config.bootstrap_samples
    scored = suite.score(images, requests, config, judge)
    if completions is not None:
        _add_completions(scored.rows, completions)
    # A row may also have columns of its part of the prompts, such as of a category.
    parts = sorted({name for row in scored.rows for name in row if "/" in name})
    metrics = [*scored.metrics, *(name for name in parts if name not in scored.metrics)]
    summary = {
        "suite": suite.name,
        "unit": suite.unit,
        "headline": scored.headline,
        "image_score": scored.image_score,
        "images": len(scored.rows),
        "missing": sum(row[scored.image_score] is None for row in scored.rows),
        "reader": scored.reader,
        "judge": judge.name if judge else None,
        "judge_is_reward": bool(judge and judge.is_reward),
        "bootstrap_samples": samples,
        "metrics": summarize(scored.rows, metrics, samples, suite.unit),
    }
    return Evaluation(scored.rows, summary)


def _add_completions(rows: Rows, completions: Sequence[str | None]) -> None:
    for row, words in zip(rows, completions, strict=True):
        if words is not None:
            row["completion"] = words


def score_folder(
    folder: Path,
    prompts: Sequence[Prompt],
    config: EvaluationConfig,
    judge: SuiteJudge | None = None,
) -> Evaluation:
    """Score the images of a folder, and write the results there.

    Raises:
        DataError: they are not exactly those that the suite asks for, or unreadable; and see
            `evaluate`.
    """
    files = [one.file for one in image_requests(prompts, config)]
    images, completions = read_images(folder, files), read_completions(folder, files)
    evaluation = evaluate(images, prompts, config, judge, completions)
    write_results(folder, evaluation, images)
    return evaluation
