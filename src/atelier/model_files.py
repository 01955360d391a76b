"""Opening models that somebody saved: what is wrong with their files is told, and nothing else is
said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from atelier.errors import ConfigError

_LONGEST = 400  # characters of a reason


def told(error: Exception) -> str:
    """An error in a line or two: transformers lists every model there is."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Inside, anything that goes wrong becomes a ConfigError that says `what`.

    Somebody's files are parsed by transformers, tokenizers, safetensors and pickle: what is damaged
    raises what their code trips over: KeyError, SafetensorError, TypeError, Exception.
    """
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{what}: {told(error)}") from error


def require_all_weights(where: str, missing: Iterable[str]) -> None:
    """Libraries make up what they do not find, with a word of warning at most.

    Args:
        where: the model, for the error.
        missing: weights that it has and its files lack.

    Raises:
        ConfigError: there are any.
    """
    lacking = sorted(missing)
    if lacking:
        raise ConfigError(
            f"{where}: {len(lacking)} of the model's weights are not there, such as {lacking[0]}"
        )


@contextmanager
def without_bars(library: Any) -> Iterator[None]:
    """No progress bars of a library.

    Args:
        library: its logging module, `transformers.utils.logging` or that of diffusers.
    """
    bars = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            library.enable_progress_bar()


@contextmanager
def quietly(library: Any) -> Iterator[None]:
    """No progress bars and no reports either: what matters in them is checked."""
    verbosity = library.get_verbosity()
    library.set_verbosity_error()
    try:
        with without_bars(library):
            yield
    finally:
        library.set_verbosity(verbosity)
