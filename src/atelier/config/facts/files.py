"""Headers of safetensors files, and JSON: what files say without being loaded."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.errors import ConfigError
from atelier.tracking.run_directory import read_json_object

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
_LENGTH = 8  # bytes that say how long the header is
_LONGEST_HEADER = 100_000_000
# What a header raises that is none: another format, or values of other kinds, too large or deep.
_UNREADABLE = (
    OSError,
    struct.error,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True)
class Stored:
    """A tensor of a file: its shape, bytes of one of its elements, and the byte behind its last,
    counted from the header's end."""

    shape: tuple[int, ...]
    itemsize: int = 4
    end: int = 0


Tensors = Mapping[str, Stored]


def count(tensors: Tensors) -> int:
    """Elements of all of them."""
    return sum(math.prod(one.shape) for one in tensors.values())


def stored_bytes(tensors: Tensors) -> int:
    """Bytes of all of them, as they are in their files."""
    return sum(math.prod(one.shape) * one.itemsize for one in tensors.values())


def below(tensors: Tensors, *prefixes: str) -> dict[str, Stored]:
    """Those whose names begin so."""
    return {name: one for name, one in tensors.items() if name.startswith(prefixes)}


def tensors_in(files: Iterable[Path]) -> dict[str, Stored]:
    """Every tensor of some files, by their headers."""
    entries: dict[str, Stored] = {}
    for file in files:
        entries |= _header(file)
    return entries


def require_to_the_end(file: Path) -> None:
    """Raise ConfigError unless a safetensors file is as long as its header says."""
    ends = [one.end for one in _header(file).values()]
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(_LENGTH))
    if file.stat().st_size < _LENGTH + length + max(ends, default=0):
        raise ConfigError(f"{file}: is cut off: copy it again")


def _header(file: Path) -> dict[str, Stored]:
    """A safetensors header: 8 bytes of length, little-endian, then that much JSON."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(_LENGTH))
            header = json.loads(stream.read(min(length, _LONGEST_HEADER)))
        return {name: _stored(one) for name, one in header.items() if name != "__metadata__"}
    except _UNREADABLE as error:
        raise ConfigError(f"{file}: not a safetensors file: {error}") from error


def _stored(entry: Any) -> Stored:
    shape = tuple(entry["shape"])
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError(f"a shape of {list(shape)}")
    return Stored(shape, _BYTES.get(entry["dtype"], 4), int(entry["data_offsets"][1]))


def read_json(file: Path) -> dict[str, Any]:
    """The object a file holds. Raises ConfigError naming the file."""
    return read_json_object(file, ConfigError)
