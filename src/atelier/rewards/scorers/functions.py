"""Functions and classes that a configuration names as `module:name`."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atelier.config.custom_rewards import function_problem
from atelier.config.paths import repository_root
from atelier.errors import ConfigError


def imported(function: str, key: str) -> Any:
    """What `module:name` names; the module may lie in the repository or on PYTHONPATH.

    Args:
        key: where it stands in the configuration, for messages.

    Raises:
        ConfigError: it cannot be imported, or is neither function nor class.
    """
    if problem := function_problem(function):
        raise ConfigError(f"{key}: {problem}")
    root = str(repository_root())
    if root not in sys.path:
        sys.path.insert(0, root)
    module, _, name = function.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever a module of the user's raises when it is imported
        raise ConfigError(
            f"{key}: {module} cannot be imported: {type(error).__name__}: {error}. Packages that "
            "only the score needs are best imported where it is made"
        ) from error
    if not callable(found):
        raise ConfigError(f"{key}: {module} has no function or class {name}")
    return found


def require_call(
    function: Callable[..., Any], positional: int, parameters: Mapping[str, Any], key: str
) -> None:
    """The function takes so many arguments by place, and these by name.

    Raises:
        ConfigError: it does not; `key` is where the parameters stand.
    """
    try:
        inspect.signature(function).bind(*[None] * positional, **parameters)
    except TypeError as error:
        raise ConfigError(f"{key}: {function.__qualname__}: {error}") from error


def file_version(function: Callable[..., Any], name: str) -> str:
    """A version for a function that has none: of the file that it is in."""
    plain = inspect.unwrap(function)
    source = inspect.getsourcefile(plain) if inspect.isfunction(plain) else None
    text = Path(source).read_bytes() if source is not None else name.encode()
    return f"{name}@{hashlib.sha256(text).hexdigest()[:12]}"
