"""Whether a port can be listened on."""

from __future__ import annotations

import socket


def port_problem(host: str, port: int) -> str | None:
    """Why nobody can listen there; None where one can."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return f"port {port} on {host} cannot be listened on ({error.strerror})"
    return None
