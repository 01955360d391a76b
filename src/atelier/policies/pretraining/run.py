"""A whole pre-training: its clock, its record, its curve and its log."""

import logging
import multiprocessing
import time
from abc import ABC, abstractmethod
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any, ClassVar, Generic, TypeVar

import torch

from atelier.policies.pretraining.course import Course
from atelier.policies.pretraining.options import PretrainingOptions, plain
from atelier.policies.pretraining.snapshots import LOG, write_json

log = logging.getLogger(__name__)
GRID_SAMPLES = 32

Own = TypeVar("Own", bound=PretrainingOptions)


class Pretraining(ABC, Generic[Own]):
    """One pre-training; a family says in `run` what is done.

    Args:
        executor: renders images and looks at them.
        started: when, by the monotonic clock.

    Attributes:
        record: how the model was made, for its snapshots.
        curve: an entry an evaluation.
    """

    reserve: ClassVar[float]
    """Seconds of the budget for the last evaluation and snapshot."""

    def __init__(self, options: Own, executor: Executor, started: float) -> None:
        self.options, self.executor, self._started = options, executor, started
        self.record: dict[str, Any] = {
            "options": plain(options),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        }
        self.curve: list[dict[str, Any]] = []

    @abstractmethod
    def run(self) -> None: ...

    def course(self) -> Course:
        """Of the training that has what is left of the budget."""
        left = self.options.budget_seconds - (time.monotonic() - self._started)
        return Course(left - self.reserve, self.options.steps)

    def evaluated(self, entry: dict[str, Any]) -> None:
        """Add an entry to the curve."""
        self.curve.append(entry)
        self.note("evaluated", **entry)

    def snapshot_record(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Of a snapshot that `entry` is the evaluation of."""
        return {**self.record, "snapshot": entry, "curve": self.curve}

    def write_log(self) -> None:
        write_json(self.options.out / LOG, {**self.record, "curve": self.curve})

    def note(self, what: str, **values: Any) -> None:
        log.info("%6.1f s  %s  %s", time.monotonic() - self._started, what, values)


def run_pretraining(kind: type[Pretraining[Own]], options: Own) -> None:
    """Run within `budget_seconds`; all lands in `options.out`, log.json rewritten as it goes."""
    started = time.monotonic()
    torch.set_float32_matmul_precision("high")
    options.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")  # workers must not inherit a CUDA context
    with ProcessPoolExecutor(options.workers, mp_context=context) as executor:
        kind(options, executor, started).run()
