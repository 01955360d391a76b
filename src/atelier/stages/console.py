"""What stages log, for whoever watches a terminal."""

from __future__ import annotations

import logging
from typing import Any, TextIO


def show_logs(stream: TextIO) -> None:
    """The library's log lines on a stream, with the time and nothing else."""
    library = logging.getLogger("atelier")
    library.setLevel(logging.INFO)
    library.propagate = False
    if not any(isinstance(handler, _Console) for handler in library.handlers):
        library.addHandler(_Console(stream))


class _Console(logging.StreamHandler[Any]):
    """The trainer's own lines are set in."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(logging.Formatter("%(asctime)s  %(message)s", datefmt="%H:%M:%S"))

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text.replace("  ", "    ", 1) if record.name == "atelier.trainer" else text
