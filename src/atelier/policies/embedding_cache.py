"""Embeddings of prompts, kept so that text encoders need not stay: in memory, and on disk.

Both places are bounded and let go of what was least recently used. On disk an embedding is a file
of its own, written aside and renamed: ranks and runs share the folder without asking each other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from atelier.config.paths import from_root
from atelier.config.sections.policy_parts import TextConfig
from atelier.permissions import as_usual

logger = logging.getLogger(__name__)

Embedding = Mapping[str, Tensor]
GIGABYTE = 10**9
CACHE = ".atelier/embeddings"
_LIBRARIES = ("torch", "transformers", "diffusers")


class MemoryCache:
    """Embeddings by prompt, at most `limit` bytes of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._kept: OrderedDict[str, Embedding] = OrderedDict()

    def __contains__(self, prompt: str) -> bool:
        return prompt in self._kept

    def get(self, prompt: str) -> Embedding | None:
        if prompt in self._kept:
            self._kept.move_to_end(prompt)
        return self._kept.get(prompt)

    def put(self, prompt: str, embedding: Embedding) -> None:
        self._kept[prompt] = embedding
        self._size += _bytes(embedding)
        while self._size > self._limit:
            self._size -= _bytes(self._kept.popitem(last=False)[1])


class DiskCache:
    """Embeddings in `folder`/<source>/, at most `limit` bytes of all sources together.

    Args:
        folder: what all sources share.
        source: name of what makes the embeddings; another encoder or setting is another source.
        limit: bytes.
    """

    def __init__(self, folder: Path, source: str, limit: int) -> None:
        self._folder = folder
        self._own = folder / source
        self._limit = limit
        self._size = sum(size for _, size, _ in self._files())

    def __contains__(self, prompt: str) -> bool:
        return self._file(prompt).is_file()

    def get(self, prompt: str) -> Embedding | None:
        """The embedding, or None; a damaged file is one that is not there."""
        file = self._file(prompt)
        try:
            embedding = load_file(file)
            os.utime(file)  # recently used
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError) as error:
            logger.warning("%s cannot be read, its prompt is encoded again: %s", file, error)
            return None
        return embedding

    def put(self, prompt: str, embedding: Embedding) -> None:
        """Write it, and make room; a disk that takes no more is no reason to stop a run."""
        file = self._file(prompt)
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            self._own.mkdir(parents=True, exist_ok=True)
            save_file(dict(embedding), aside)
            as_usual([aside])
            aside.replace(file)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):
                aside.unlink()
            logger.warning("an embedding was not kept in %s: %s", self._own, error)
            return
        self._size += file.stat().st_size
        if self._size > self._limit:
            self._make_room()

    def _make_room(self) -> None:
        """Remove the least recently used, of all sources and down to what other processes left."""
        files = sorted(self._files())
        self._size = sum(size for _, size, _ in files)
        for _, size, file in files:
            if self._size <= self._limit:
                return
            file.unlink(missing_ok=True)
            self._size -= size

    def _files(self) -> list[tuple[int, int, Path]]:
        """When used, size and path of every file."""
        found = []
        for file in self._folder.glob("*/*.safetensors"):
            try:
                status = file.stat()
            except FileNotFoundError:  # another process made room
                continue
            found.append((status.st_mtime_ns, status.st_size, file))
        return found

    def _file(self, prompt: str) -> Path:
        return self._own / f"{hashlib.sha256(prompt.encode()).hexdigest()}.safetensors"


class EmbeddingCache:
    """Memory first, then the disk where there is one."""

    def __init__(self, memory: MemoryCache, disk: DiskCache | None = None) -> None:
        self._memory = memory
        self._disk = disk

    def __contains__(self, prompt: str) -> bool:
        return prompt in self._memory or (self._disk is not None and prompt in self._disk)

    def get(self, prompt: str) -> Embedding | None:
        found = self._memory.get(prompt)
        if found is None and self._disk is not None:
            found = self._disk.get(prompt)
            if found is not None:
                self._memory.put(prompt, found)
        return found

    def put(self, prompt: str, embedding: Embedding) -> None:
        self._memory.put(prompt, embedding)
        if self._disk is not None:
            self._disk.put(prompt, embedding)


def open_cache(text: TextConfig, source: str) -> EmbeddingCache:
    """The places that a configuration asks for; `source` as of `fingerprint`."""
    memory = MemoryCache(int(text.memory_gigabytes * GIGABYTE))
    limit = int(text.disk_gigabytes * GIGABYTE)
    return EmbeddingCache(memory, DiskCache(from_root(CACHE), source, limit) if limit else None)


def fingerprint(files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """What every embedding depends on beside its prompt, as 64 hex digits.

    Files are told by their path (a hub snapshot's names the commit), size and time of change:
    hashing gigabytes at every start would take longer than some runs.
    """
    content = {
        "files": [(str(file.absolute()), *_size_and_time(file)) for file in sorted(files)],
        **settings,
        "libraries": {name: version(name) for name in _LIBRARIES},
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _size_and_time(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _bytes(embedding: Embedding) -> int:
    return sum(value.numel() * value.element_size() for value in embedding.values())
