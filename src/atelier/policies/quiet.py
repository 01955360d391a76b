"""Loading models without the libraries' bars and reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging


@contextmanager
def quietly() -> Iterator[None]:
    """Inside, no progress bars, and of diffusers no warnings: it has one for every part of a
    pipeline that is of another class than usual."""
    verbosity = diffusers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        diffusers_logging.set_verbosity(verbosity)
        diffusers_logging.enable_progress_bar()
        if bars:
            transformers_logging.enable_progress_bar()
