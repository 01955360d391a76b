"""Showing somebody a share of the questions, with their answers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from atelier.judge.questions import Answer, Question

logger = logging.getLogger(__name__)

Trace = Callable[[Question, Answer], object]


class SampledTrace:
    """Tells `trace` a share of the questions; what it raises is logged and harms nothing.

    Args:
        key: whose questions they are, for messages.
        trace: None for nobody.
        share: in [0, 1], drawn at random and apart from the global state, which a run has seeded.
    """

    def __init__(self, key: str, trace: Trace | None, share: float) -> None:
        self._key = key
        self._trace = trace
        self._share = share
        self._random = random.Random()

    def show(self, questions: Sequence[Question], answers: Sequence[Answer]) -> None:
        """Questions and their answers, in one order."""
        if self._trace is None:
            return
        for question, answer in zip(questions, answers, strict=True):
            if self._random.random() >= self._share:
                continue
            try:
                self._trace(question, answer)
            except Exception as error:  # a mirror must never cost an answer
                logger.warning("%s: a trace failed: %s: %s", self._key, type(error).__name__, error)
