"""Ports and health of services on this machine."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

HOST = "127.0.0.1"


def answers(url: str, seconds: float = 2.0) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def is_loopback(url: str) -> bool:
    """Whether the URL's host is this machine and nobody else's."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Some port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
