"""Which run somebody means: a directory, an id or how it begins, or the name it was given."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from atelier.config.paths import is_directory, is_file, runs_root
from atelier.errors import ConfigError, DataError
from atelier.tracking.run_directory import RunDirectory, read_run_file

SHORTEST = 3  # characters of an id that somebody writes on purpose
LISTED = 8  # ids in a message that says which runs there are


def find_run(name: str) -> RunDirectory:
    """An existing run by its directory, by its id under runs/ or how only that begins, or by the
    name that only it was given.

    Raises:
        ConfigError: there is none, or several ids begin so, or several runs are called so.
    """
    for path in (Path(name), runs_root() / name):
        if name and is_file(path / "run.json"):
            return RunDirectory(path.resolve())
    ids = [path.parent.name for path in sorted(runs_root().glob("[!.]*/run.json"))]
    begun = [one for one in ids if len(name) >= SHORTEST and one.startswith(name)]
    if len(begun) == 1:
        return RunDirectory((runs_root() / begun[0]).resolve())
    if begun:
        raise ConfigError(f"run {name!r} may be any of {_listed(begun)}: write more of its id")
    called = [one for one in ids if name and _name_of(one) == name]
    if len(called) == 1:
        return RunDirectory((runs_root() / called[0]).resolve())
    if called:
        raise ConfigError(f"runs {_listed(called)} are all called {name!r}: write how an id begins")
    raise ConfigError(
        f"no run {name!r}: neither a run directory nor an id under {runs_root()}; "
        + _other_runs(name, ids)
    )


def find_id(name: str) -> Path | None:
    """The directory of the one run under runs/ whose id is or begins so; None where there is none,
    or several."""
    try:
        return find_run(name).root
    except ConfigError:
        return None


def find_path(name: str) -> Path:
    """The directory of that name, else the run's under runs/ whose id it is or begins; else the
    path as it was written, for who says what is wrong with it."""
    path = Path(name)
    return path if is_directory(path) else find_id(name) or path


def _name_of(run_id: str) -> str | None:
    """What run.json calls a run; None of one that cannot be read, which nobody can mean by name."""
    try:
        return read_run_file(RunDirectory(runs_root() / run_id)).get("run_name")
    except DataError:
        return None


def find_evaluation(name: str) -> Path:
    """The folder of that name, unless it is a run's; of a run, its final evaluation.

    Raises:
        ConfigError: there is neither, or the run has no final evaluation yet.
    """
    path = Path(name)
    if is_directory(path) and not is_file(path / "run.json"):
        return path
    run = find_run(name)
    if not is_file(run.evaluate / "summary.json"):
        raise ConfigError(
            f"run {run.root.name} has no final evaluation yet; that before training is, once it is "
            f"done, {run.baseline}"
        )
    return run.evaluate


def _other_runs(name: str, ids: Sequence[str]) -> str:
    """What somebody may have meant who misspelt the beginning of an id."""
    if not ids:
        return "there are no runs yet"
    beginnings = {one[: len(name)] for one in ids} if name else set()
    close = difflib.get_close_matches(name, beginnings, cutoff=0.7)
    near = [one for one in ids if one.startswith(tuple(close))]
    return f"did you mean {' or '.join(near[:3])}?" if near else f"there are {_listed(ids)}"


def _listed(ids: Sequence[str]) -> str:
    more = len(ids) - LISTED
    return ", ".join(ids[:LISTED]) + (f" and {more} more (`atelier prune`)" if more > 0 else "")
