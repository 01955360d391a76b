"""What a file or folder is, by content."""

from __future__ import annotations

import hashlib
from pathlib import Path

# A released model of many gigabytes is identified by its file sizes: hashing it for every stage
# would cost minutes, and its path and names say which one it is.
LARGEST_HASHED_BYTES = 256 * 1024**2
# A reworded model card is not another model.
NOT_LOADED = frozenset({".md", ".png", ".jpg", ".jpeg", ".webp"})


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity_of(path: Path) -> str:
    """sha256 of a file; or of a model folder: names and contents of all that could be loaded."""
    if path.is_file():
        return _identity_of_file(path)
    lines = [
        f"{file.relative_to(path).as_posix()} {_identity_of_file(file)}\n"
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.suffix.lower() not in NOT_LOADED
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _identity_of_file(path: Path) -> str:
    size = path.stat().st_size
    return f"{size} bytes" if size > LARGEST_HASHED_BYTES else sha256(path)
