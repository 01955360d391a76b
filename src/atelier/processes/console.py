"""Warnings and tracebacks of a program whose output is kept: without the machine's paths."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from pathlib import Path
from types import TracebackType

from atelier.config.paths import without_machine_paths


def shorten_paths(*roots: Path) -> None:
    """From now on, paths below `roots`, the repository and the home directory are cut short in
    what the interpreter itself prints: uncaught errors, of threads too, and warnings."""

    def crash(
        kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
    ) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(without_machine_paths(text, *roots))

    def warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        return without_machine_paths(
            f"{filename}:{lineno}: {category.__name__}: {message}\n", *roots
        )

    sys.excepthook = crash
    threading.excepthook = lambda one: crash(one.exc_type, one.exc_value, one.exc_traceback)
    warnings.formatwarning = warning
