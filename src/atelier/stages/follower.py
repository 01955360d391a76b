"""Scores the periodic evaluations beside the trainer, which only generates their images.

A thread follows train/events.jsonl; each `evaluation_images` event names a folder, and gets
scores.jsonl and summary.json there. Step 0 is the baseline, cut to the same prompts.

Training goes on whatever becomes of an evaluation. One whose judge cannot be reached is tried again
beside it, and at its end for the last time: then the stage stops, resumable, with every checkpoint.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from atelier.background import LEAVE_SECONDS, BackgroundLoop
from atelier.config.schema import RunConfig
from atelier.data.prompts import read_prompts
from atelier.errors import AtelierError, Stopped
from atelier.evaluation.evaluate import score_folder
from atelier.evaluation.files import copy_images, read_evaluation, read_images, write_results
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import evaluated, image_requests
from atelier.evaluation.results import restricted
from atelier.stages.announced import Images, announced_images
from atelier.stages.baseline import describe
from atelier.tracking.run_directory import RunDirectory

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
JUDGE_AWAY_SECONDS = 60.0


class EvaluationFollower:
    """A context in which evaluations are scored as they come. `finish` scores the last ones.

    Args:
        judge: the one that the suite asks, if it asks one.
    """

    def __init__(
        self, run: RunDirectory, config: RunConfig, judge: SuiteJudge | None = None
    ) -> None:
        self._run = run
        self._config = config
        self._judge = judge
        self._prompts = read_prompts(run.data / "heldout.parquet")
        self._loop = BackgroundLoop("evaluation-scorer", self._follow, first_after=POLL_SECONDS)

    def finish(self) -> None:
        """Score whatever is left, here and now; an error is the caller's."""
        self._loop.leave(threading.TIMEOUT_MAX)
        self._score_new()

    def _follow(self) -> float | None:
        try:
            self._score_new()
        except Stopped as stopped:
            logger.warning("an evaluation is scored later: %s", stopped)
            return JUDGE_AWAY_SECONDS
        except (AtelierError, OSError):
            logger.exception("an evaluation could not be scored now; it is tried again at the end")
            return None
        return POLL_SECONDS

    def _score_new(self) -> None:
        for images in announced_images(self._run):
            self._score(images)

    def _score(self, images: Images) -> None:
        if (images.folder / "summary.json").exists():
            return
        prompts = evaluated(self._prompts, self._config.evaluation, images.prompts)
        evaluation = score_folder(images.folder, prompts, self._config.evaluation, self._judge)
        means = {name: evaluation.mean(name) for name in evaluation.summary["metrics"]}
        of = self._of_prompts(len(prompts))
        logger.info("held-out at step %d%s: %s", images.step, of, describe(means))

    def _of_prompts(self, count: int) -> str:
        """Of how many prompts, where before and after are of more, whose means are others."""
        config = self._config.evaluation
        whole = len(evaluated(self._prompts, config, config.prompts))
        return f" (first {count} of {whole} prompts)" if count < whole else ""

    def __enter__(self) -> EvaluationFollower:
        write_step_zero(self._run, self._config)
        self._loop.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.leave(LEAVE_SECONDS if kind is None else 2.0)


def write_step_zero(run: RunDirectory, config: RunConfig) -> None:
    """The baseline's first prompts as the periodic evaluation of step 0: same weights, prompts and
    noise, so the curve has its beginning without generating anything."""
    folder = run.periodic_evaluation(config.evaluation.suite, 0)
    if not (run.baseline / "summary.json").exists() or (folder / "summary.json").exists():
        return
    heldout = read_prompts(run.data / "heldout.parquet")
    prompts = evaluated(heldout, config.evaluation, config.evaluation.periodic_prompts)
    baseline = read_evaluation(run.baseline)
    there = {row["image"] for row in baseline.rows}
    asked = [one.file for one in image_requests(prompts, config.evaluation)]
    files = [file for file in asked if file in there]
    copy_images(run.baseline, folder, files)
    write_results(folder, restricted(baseline, files), read_images(folder, files))
