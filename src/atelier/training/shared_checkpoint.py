"""All ranks go on from the same checkpoint: the main one chooses, the others read what it chose.

Machines may see a shared disk differently for some seconds, or see different disks: a rank that
chose for itself would train on from another step than the rest, and nothing would say so.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from atelier.errors import AtelierError, CheckpointError
from atelier.training.checkpoint import (
    MANIFEST,
    Checkpoint,
    checkpoint_name,
    load_checkpoint,
    require_copies,
)
from atelier.training.distributed import World
from atelier.training.journal import Journal
from atelier.training.session import find_checkpoint

# A file on a network disk is seen by other machines some seconds after it was written.
SEEN_SECONDS = 60.0
AGAIN_SECONDS = 1.0


class Choice(NamedTuple):
    """A checkpoint's folder, and the sha256 of its manifest: names come again."""

    name: str
    manifest: str


def shared_checkpoint(
    folder: Path, digest: str, journal: Journal, kept: Collection[str], world: World
) -> Checkpoint | None:
    """Collective: what `find_checkpoint` finds on the main rank, read by every rank.

    Raises:
        CheckpointError: on every rank: there is none to go on from, a rank cannot read the one
            that was chosen, or trains on other data than the main one.
    """
    _require_one_digest(digest, world)
    checkpoint, choice, words = None, None, None
    if world.is_main:
        try:
            checkpoint = find_checkpoint(folder, digest, journal, kept)
            choice = None if checkpoint is None else _choice(folder, checkpoint)
        except AtelierError as error:  # also of the note that pruning leaves
            words = str(error)
    choice, words = world.gather((choice, words))[0]
    if words is None and choice is not None and not world.is_main:
        try:
            checkpoint = _read(folder / choice.name, choice, kept)
        except CheckpointError as error:
            words = f"{_who(world)} cannot read the checkpoint that rank 0 goes on from: {error}"
    failures = [one for one in world.gather(words) if one is not None]
    if failures:
        raise CheckpointError(failures[0])
    return checkpoint


def _require_one_digest(digest: str, world: World) -> None:
    all_ranks = world.gather((digest, _who(world)))
    others = [who for theirs, who in all_ranks if theirs != all_ranks[0][0]]
    if others:
        raise CheckpointError(
            f"{others[0]} has another configuration or other prompts than rank 0: all nodes need "
            "the same run directory, and the same Atelier"
        )


def _read(path: Path, choice: Choice, kept: Collection[str]) -> Checkpoint:
    deadline = time.monotonic() + SEEN_SECONDS
    while True:
        try:
            if _manifest(path) != choice.manifest:
                raise CheckpointError(
                    f"{path}: another one than rank 0 sees there; all nodes need the same directory"
                )
            checkpoint = load_checkpoint(path)
            require_copies(path, checkpoint, kept)
            return checkpoint
        except CheckpointError:
            if time.monotonic() > deadline:
                raise
        time.sleep(AGAIN_SECONDS)


def _choice(folder: Path, checkpoint: Checkpoint) -> Choice:
    name = checkpoint_name(checkpoint.state.step)
    return Choice(name, _manifest(folder / name))


def _manifest(path: Path) -> str:
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path / MANIFEST}: {error.strerror or error}") from error


def _who(world: World) -> str:
    return f"rank {world.rank} on {socket.gethostname()}"
