"""Which machine this is: of processes of others, in a folder that they share, nothing is seen."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from pathlib import Path

_IDS = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


def this_host() -> str:
    """NAME/ID: a name alone may be that of several machines, of containers above all.

    The id is a digest of the machine's, which outlives a restart (where it has none, of this start
    of its kernel), and of the namespace of pids: processes of another one are not seen from here,
    so their pids say nothing, as those of another machine.
    """
    return f"{socket.gethostname()}/{_machine()}"


@functools.cache
def _machine() -> str:
    texts = (path.read_text().strip() if path.is_file() else "" for path in _IDS)
    own = f"{next(filter(None, texts), 'unknown')} {_pid_namespace()}"
    return hashlib.sha256(own.encode()).hexdigest()[:8]


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
