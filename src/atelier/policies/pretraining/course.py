"""The steps of a training that has so much time."""

import time
from collections.abc import Iterator


class Course:
    """Steps until the time or their number is over, whichever is first.

    Iterating gives, before each step, how much of the training is over, in [0, 1).

    Args:
        seconds: of wall-clock time; no steps at 0 or less.
        steps: the most.
        untimed: so many first steps do not count as time: they compile.

    Attributes:
        step: the number of the step, from 1; at the end, how many there were.
    """

    def __init__(self, seconds: float, steps: int, untimed: int = 0) -> None:
        self.step = 0
        self._seconds, self._steps, self._untimed = seconds, steps, untimed
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def __iter__(self) -> Iterator[float]:
        while self._seconds > 0:
            if self.step == self._untimed:
                self._start = time.monotonic()
            done = max(self.seconds / self._seconds, self.step / self._steps)
            if done >= 1:
                return
            self.step += 1
            yield done
