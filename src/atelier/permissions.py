"""Files that a library wrote for their owner alone, opened as far as this process opens its own.

safetensors writes into a temporary file, which is private, and renames it: without this, colleagues
could read everything of a model but its weights.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def as_usual(files: list[Path]) -> None:
    """Give files the permissions that new ones of this process have (its umask); takes none away.

    Args:
        files: of one file system, links among them are left alone.
    """
    own = [path for path in files if path.is_file() and not path.is_symlink()]
    if not own:
        return
    usual = _usual_mode(own[0].parent)
    for path in own:
        mode = path.stat().st_mode & 0o777
        if mode | usual != mode:
            path.chmod(mode | usual)


def _usual_mode(folder: Path) -> int:
    """Asked of a file, because asking for the umask means changing it, in every thread at once."""
    with tempfile.TemporaryDirectory(prefix=".mode-", dir=folder) as place:
        probe = Path(place) / "probe"
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
        return probe.stat().st_mode & 0o777
