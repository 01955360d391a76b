"""MANIFEST.json: {file: sha256} of every file of an exported directory, as in a checkpoint."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from atelier.errors import CheckpointError
from atelier.tracking.run_directory import read_json_object, write_json

MANIFEST = "MANIFEST.json"
_BLOCK = 1 << 20


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, hex, after forcing them to disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(directory: Path) -> str:
    """List every file under `directory` with its sha256; returns the manifest's own sha256."""
    files = {name: file_sha256(directory / name) for name in _listed(directory)}
    write_json(directory / MANIFEST, files)
    return file_sha256(directory / MANIFEST)


def check_manifest(directory: Path) -> int:
    """Compare every file with the manifest; returns how many were compared.

    Raises:
        CheckpointError: no readable manifest, or files missing, altered or not listed.
    """
    listed = _read(directory)
    present = set(_listed(directory))
    problems = [f"{name}: missing" for name in sorted(set(listed) - present)]
    problems += [f"{name}: not listed" for name in sorted(present - set(listed))]
    problems += [
        f"{name}: altered (sha256 differs)"
        for name in sorted(present & set(listed))
        if file_sha256(directory / name) != listed[name]
    ]
    if problems:
        raise CheckpointError(
            f"{directory}: does not match its {MANIFEST}: {'; '.join(problems)}. "
            "Export again, or fetch the directory again from where it was intact."
        )
    return len(listed)


def _listed(directory: Path) -> list[str]:
    """Relative names of the files a manifest covers.

    Hidden ones are left out: file managers and hub clients drop them into directories they touch,
    and no loader reads them.
    """
    names = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return sorted(
        name.as_posix()
        for name in names
        if name.as_posix() != MANIFEST and not any(part.startswith(".") for part in name.parts)
    )


def _read(directory: Path) -> dict[str, str]:
    path = directory / MANIFEST
    if not path.exists():
        raise CheckpointError(
            f"{directory}: no {MANIFEST}: not an exported directory, or an incomplete copy"
        )
    files = read_json_object(path, CheckpointError)
    if not files:
        raise CheckpointError(f"{path}: not a manifest: it must map file names to sha256")
    return files
