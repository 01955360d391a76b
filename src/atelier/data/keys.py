"""Keyed randomness: every random draw of the project is seeded by a hash of what it is for.

A key depends only on its parts, never on a process, a device count or an earlier draw, so a resumed
run and a run on more ranks draw the same numbers.
"""

import hashlib

Part = int | str | bytes | float | bool | None


def key(*parts: Part) -> int:
    """Hash the parts to an unsigned 64-bit integer (blake2b), the same on every machine.

    Parts are length-prefixed and typed, so ("ab", "c") and ("a", "bc"), or 1 and "1", differ.

    Raises:
        TypeError: a part is neither a number, a string, bytes nor None.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = _encode(part)
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "little")


def uniform(*parts: Part) -> float:
    """A keyed number in [0, 1)."""
    return (key(*parts) >> 11) / float(1 << 53)


def _encode(part: Part) -> bytes:
    if isinstance(part, bytes):
        return b"b" + part
    if isinstance(part, str):
        return b"s" + part.encode()
    if part is None or isinstance(part, bool | int):
        return type(part).__name__.encode() + b":" + repr(part).encode()
    if isinstance(part, float):  # numpy's float64 is one, with another repr
        return b"float:" + repr(float(part)).encode()
    raise TypeError(f"a key is made of numbers, strings, bytes or None, not {type(part).__name__}")
