"""Ports that nobody listens on at this moment."""

from __future__ import annotations

from flows.local_platform.loopback import free_port, is_free


def meeting_port() -> int:
    """One where nodes can meet: the next is free, too."""
    while not is_free((port := free_port()) + 1):
        pass
    return port
