"""Whether the function of a reward of one's own can be found, without importing anything."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

from atelier.config.paths import repository_root


def import_path() -> list[str]:
    """Where modules of rewards are looked for: the repository, then where Python looks (which
    PYTHONPATH adds to)."""
    return [str(repository_root()), *sys.path]


def function_problem(function: str) -> str | None:
    """Why there is no module for a `module:name`; None where there is one."""
    module = function.partition(":")[0]
    places: list[str] | None = import_path()
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        # By its last word: for a dotted name Python would want its packages to be imported.
        spec = PathFinder.find_spec(part, places) if places is not None else None
        if spec is None:
            return (
                f"there is no module {name} in the repository or on PYTHONPATH; "
                f"{function!r} is its dotted name, a colon, and the function's or class's name"
            )
        found = spec.submodule_search_locations
        places = None if found is None else list(found)
    return None
