"""Whether the function of a reward of one's own can be found, without importing anything."""

from __future__ import annotations

import ast
import difflib
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from atelier.config.paths import repository_root


def import_path() -> list[str]:
    """Where modules of rewards are looked for: the repository, then where Python looks (which
    PYTHONPATH adds to)."""
    return [str(repository_root()), *sys.path]


def function_problem(function: str) -> str | None:
    """Why there is no module for a `module:name`; None where there is one."""
    module = function.partition(":")[0]
    places: list[str] | None = import_path()
    name, spec = "", None
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
    return _name_problem(function, Path(spec.origin) if spec and spec.origin else None)


def says_range(function: str) -> bool:
    """Whether the text of a `module:name` that is there says a value_range anywhere; what is no
    text, or imports from elsewhere, is believed."""
    source = _source(function)
    if source is None:
        return True
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return True
    return "value_range" in text or f"def {function.partition(':')[2]}(" not in text


def _source(function: str) -> Path | None:
    """The file of a module below the repository or on PYTHONPATH; None where it is none."""
    places: list[str] | None = import_path()
    spec = None
    for part in function.partition(":")[0].split("."):
        spec = PathFinder.find_spec(part, places) if places is not None else None
        if spec is None:
            return None
        found = spec.submodule_search_locations
        places = None if found is None else list(found)
    origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _name_problem(function: str, source: Path | None) -> str | None:
    """Why a module has no such name, by its text: importing it may take long, or do something."""
    module, _, name = function.partition(":")
    if source is None or source.suffix != ".py":
        return None
    try:
        names = _bound(ast.parse(source.read_bytes()))
    except (OSError, SyntaxError, ValueError) as error:
        return f"{module} cannot be read: {error}"
    if name in names or "*" in names:
        return None
    close = difflib.get_close_matches(name, names, n=1)
    return f"{module} has no {name}" + (f"; did you mean {close[0]}?" if close else "")


def _bound(tree: ast.Module) -> set[str]:
    """Names that a module's own statements bind; "*" where it takes all of another's."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
    return found
