"""What must be the same on all nodes, because results would differ, or ranks not understand each
other. Digests stand for what is long; they say that something differs, and the words say what."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import atelier
from atelier.config.digest import stage_digest
from atelier.config.schema import RunConfig
from atelier.stages.run_file import commit_here

PACKAGES = ("torch", "transformers", "diffusers", "peft", "deepspeed", "numpy")
COMMIT, SOURCE, CONFIGURATION = "commit", "source files of src/atelier", "configuration of train"
MENDS = {
    COMMIT: "check out the same one on all nodes",
    SOURCE: "commit, or undo, what was changed on one of them",
    CONFIGURATION: "resume the run on node 0 and start this node again: it reads an older file",
}


def likeness(config: RunConfig) -> dict[str, str | None]:
    """By name, what this node computes with; None where it cannot be said or is not there."""
    return {
        COMMIT: commit_here(),
        SOURCE: _source(Path(atelier.__file__).parent),
        CONFIGURATION: stage_digest(config, "train"),
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        **{name: _version(name) for name in PACKAGES},
    }


def differences(there: Mapping[str, str | None], here: Mapping[str, str | None]) -> list[str]:
    """A sentence for everything in which this node differs from node 0, with its mend.

    A commit that one of them cannot say is passed over: the source files say it, too.
    """
    found = []
    for name in {**there, **here}:
        theirs, ours = there.get(name), here.get(name)
        unsaid = name == COMMIT and None in (theirs, ours)
        if theirs != ours and not unsaid:
            mend = MENDS.get(name, "install the same one on all nodes")
            found.append(f"{name}: {_short(theirs)} on node 0, {_short(ours)} here; {mend}")
    return found


def _short(value: str | None) -> str:
    return "none" if value is None else value[:12]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _source(folder: Path) -> str:
    """Of all modules' text, committed or not."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
