"""Which machine this is: of processes of others, in a folder that they share, nothing is seen."""

from __future__ import annotations

import functools
import hashlib
import socket
from pathlib import Path

_IDS = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


def this_host() -> str:
    """NAME/ID: a name alone may be that of several machines, of containers above all.

    The id is a digest of the machine's, which outlives a restart; where it has none, of this start
    of its kernel.
    """
    return f"{socket.gethostname()}/{_machine()}"


@functools.cache
def _machine() -> str:
    for path in _IDS:
        text = path.read_text().strip() if path.is_file() else ""
        if text:
            return hashlib.sha256(text.encode()).hexdigest()[:8]
    return "unknown"
