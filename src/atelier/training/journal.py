"""What the main rank writes for people and programs to follow: metrics, events, a console line."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from atelier.tracking.events import JsonLines
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import LoopState, checkpoint_name
from atelier.training.distributed import World

DRIFTS = (("ratio/mean_abs_dev", "|ratio-1|"), ("nft/velocity_gap", "drift"))


class Journal:
    """Metrics and events of a run; ranks other than the main one write nothing."""

    def __init__(self, run: RunDirectory, world: World, console: TextIO | None = None) -> None:
        self.run = run
        self._main = world.is_main
        self._console = console or sys.stdout
        self._started = time.monotonic()
        self._steps_here = 0
        if self._main:
            self._metrics = JsonLines(run.metrics)
            self._events = JsonLines(run.events)

    def step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """Record a finished step and show it."""
        if not self._main:
            return
        self._metrics.append({"step": step, **metrics})
        self._steps_here += 1
        pace = (time.monotonic() - self._started) / self._steps_here
        self.say(
            f"step {step:>4}/{steps}  reward {metrics['reward/mean']:.3f}  "
            f"std {metrics['reward/std']:.3f}  {_drift(metrics)}"
            f"grad {metrics['grad_norm']:.2e}  {metrics['time/step']:.1f} s  "
            f"left {_clock(pace * (steps - step))}"
        )

    def event(self, name: str, step: int, **facts: Any) -> None:
        if self._main:
            self._events.append({"event": name, "step": step, **facts})

    def saved(self, step: int) -> None:
        """Say that the checkpoint of a step is there, whole and proven."""
        self.event("checkpoint", step, folder=checkpoint_name(step))

    def say(self, line: str) -> None:
        if self._main:
            self._console.write(line + "\n")
            self._console.flush()

    def offsets(self) -> tuple[int, int]:
        """Lengths of metrics and events, for a checkpoint."""
        return (self._metrics.offset(), self._events.offset()) if self._main else (0, 0)

    def cut_back(self, metrics: int, events: int) -> None:
        """Forget what was written after these lengths."""
        if self._main:
            self._metrics.cut_back(metrics)
            self._events.cut_back(events)

    def go_on_from(self, state: LoopState) -> None:
        """Forget what was written after a checkpoint, and say that it is there: its own event came
        after it was whole, and so behind the offsets that it holds."""
        self.cut_back(state.metrics_offset, state.events_offset)
        self.saved(state.step)

    def close(self) -> None:
        if self._main:
            self._metrics.close()
            self._events.close()


def _drift(metrics: Mapping[str, float]) -> str:
    """How far the policy has moved from the one that sampled, as its algorithm measures it."""
    return "".join(f"{word} {metrics[name]:.1e}  " for name, word in DRIFTS if name in metrics)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
