"""Where the repository's own files lie: recipes, assets, DeepSpeed settings, environments.

Atelier runs from its checkout (`pip install -e .`). Paths in a configuration are relative to the
repository, so that a run means the same from whatever directory it is started.
"""

from __future__ import annotations

import os
from pathlib import Path

from atelier.errors import ConfigError


def repository_root() -> Path:
    """The checkout this library was imported from.

    Raises ConfigError when the library was installed without its repository.
    """
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file() or not (root / "recipes").is_dir():
        raise ConfigError(
            f"no repository at {root}: Atelier reads its recipes and assets from its checkout; "
            "install it there with `pip install -e .`"
        )
    return root


def from_root(path: str | Path) -> Path:
    """`path` as it is when absolute or in the home directory (`~`), else relative to the
    repository."""
    return repository_root() / os.path.expanduser(path)


def runs_root() -> Path:
    """Where flows keep their runs: runs/ in the repository, or the directory ATELIER_RUNS names."""
    return from_root(os.environ.get("ATELIER_RUNS") or "runs")


def without_machine_paths(text: str, *roots: Path) -> str:
    """`text` with paths below `roots`, the repository and the home directory cut short.

    For what is written into a run: it may travel, and where this machine keeps things is nobody's
    business.
    """
    for root in (*roots, repository_root()):
        text = text.replace(f"{root}/", "").replace(str(root), root.name)
    return text.replace(f"{Path.home()}/", "~/")


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file system takes is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_directory(path: Path) -> bool:
    """Whether there is such a directory; a name that no file system takes is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def make_folder(folder: Path, option: str) -> None:
    """Make a folder that somebody named, where it is not there, before anything is written.

    Args:
        option: where it was named, such as `--run`.

    Raises:
        ConfigError: it cannot be one, or cannot be written into.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL in its name
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{option} {folder}: cannot be a folder: {why}; name one that can be written"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{option} {folder}: cannot be written; name one that can, or mend it")


def tracking_file(path: Path) -> Path | None:
    """The .dvc file that tracks `path`, itself or with a folder around it; None without one."""
    root = repository_root()
    for tracked in (path, *path.parents):
        if tracked == root or not tracked.is_relative_to(root):
            return None
        file = tracked.with_name(f"{tracked.name}.dvc")
        if is_file(file):
            return file
    return None
