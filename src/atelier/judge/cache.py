"""Replies on disk, by a hash of all that was asked: the same question is paid for once.

A cache may lose everything and harm nothing: a damaged entry is a miss, a full disk ends the
writing, and both are said once. Only replies that could be read are kept. Any number of processes
may share a folder, because an entry is written aside and renamed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from atelier.judge.replies import Reply

logger = logging.getLogger(__name__)

_VERSION = 1
_ABANDONED_SECONDS = 3600.0  # after which a file written aside is nobody's any more
_ROOM = 0.9  # of the bound is left after a removal, so that it is rare


class _Entry(BaseModel):
    """A file of the cache."""

    model_config = ConfigDict(strict=True, extra="forbid")

    version: int
    key: str
    text: str
    finish_reason: str | None
    first_token: list[tuple[str, float]] | None


def cache_key(asked: dict[str, Any]) -> str:
    """sha256 of what was asked, as JSON: model, parameters, texts, images, measurement."""
    text = json.dumps({"version": _VERSION, **asked}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class ReplyCache:
    """Replies in a folder, for any number of threads.

    Args:
        folder: made when the first reply is kept.
        max_bytes: of all entries; those that were not used longest are removed first.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._bytes: int | None = None  # unknown until the folder is looked at
        self._written = 0  # since then: other processes write, too
        self._warned: set[str] = set()

    def get(self, key: str) -> Reply | None:
        """The reply that was kept under a key; None where there is none that can be used."""
        path = self._path(key)
        try:
            entry = _Entry.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_once("reading", f"{self._folder}: answers cannot be read ({error})")
            return None
        except (ValidationError, ValueError):
            logger.warning("%s: a damaged or foreign answer, taken as none", path)
            return None
        if entry.key != key or entry.version != _VERSION:
            logger.warning("%s: the answer to another question, taken as none", path)
            return None
        self._touch(path)
        first = tuple(entry.first_token) if entry.first_token is not None else None
        return Reply(entry.text, entry.finish_reason, None, first)

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply that could be read."""
        entry = {
            "version": _VERSION,
            "key": key,
            "text": reply.text,
            "finish_reason": reply.finish_reason,
            "first_token": reply.first_token,
        }
        content = json.dumps(entry).encode()
        if len(content) > self._max_bytes:
            return
        try:
            self._write(self._path(key), content)
            self._keep_within_bound(len(content))
        except OSError as error:
            self._warn_once("writing", f"{self._folder}: answers are not kept ({error})")

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"

    def _touch(self, path: Path) -> None:
        """Note that an entry was used; a folder that is only read keeps no such note."""
        try:
            os.utime(path)
        except OSError as error:
            self._warn_once("touching", f"{self._folder}: uses are not noted ({error})")

    def _write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            aside.write_bytes(content)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def _keep_within_bound(self, added: int) -> None:
        with self._lock:
            self._written += added
            within = self._bytes is not None and self._bytes + self._written <= self._max_bytes
            # Looked at again now and then, for what others wrote.
            if not within or self._written * 16 > self._max_bytes:
                self._bytes, self._written = self._remove_oldest(), 0

    def _remove_oldest(self) -> int:
        """Make room where the bound is passed. Returns the bytes that are left."""
        entries = list(_entries(self._folder))
        self._remove_abandoned()
        total = sum(size for _, size, _ in entries)
        if total <= self._max_bytes:
            return total
        for _, size, path in sorted(entries):
            if total <= _ROOM * self._max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total

    def _remove_abandoned(self) -> None:
        """Files of processes that ended while they wrote."""
        for path in self._folder.glob("??/.*"):
            try:
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
            except FileNotFoundError:
                continue

    def _warn_once(self, kind: str, text: str) -> None:
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        logger.warning("%s", text)


def cache_bytes(folder: Path) -> int:
    """Of all replies that a folder keeps; 0 where there is none."""
    return sum(size for _, size, _ in _entries(folder))


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Last use, bytes and file of every reply."""
    for path in folder.glob("??/*.json"):
        try:
            stat = path.stat()
        except FileNotFoundError:  # another process removed it
            continue
        yield stat.st_mtime, stat.st_size, path
