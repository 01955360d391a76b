"""Node 0's board over HTTP: POST / of [operation, arguments...], answered with a value as JSON."""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from atelier.config.loopback import is_loopback
from atelier.errors import ConfigError
from atelier.stages.nodes.board import Board

OPERATIONS = ("put", "read", "put_first", "remove", "count")
BODY_BYTES = 64 * 1024
# For which a connection may be silent: one that says nothing must not keep a thread.
SILENT_CONNECTION_SECONDS = 10.0


@contextmanager
def served(board: Board, address: str, port: int, token: str | None) -> Iterator[None]:
    """Answer visitors inside.

    Args:
        address: as they name this machine. A loopback address is the only one listened on; else
            all are, because a name may mean another address to each machine.
        token: what visitors have to show; None: nothing.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    try:
        server = _Server(_place(address, port), board, token)
    except OSError as error:
        raise ConfigError(
            f"launch.master_port: {address}:{port} cannot be listened on: {error.strerror or error}"
        ) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _place(address: str, port: int) -> tuple[str, int]:
    if is_loopback(address):
        return ("127.0.0.1" if address == "localhost" else address), port
    return ("::" if socket.has_dualstack_ipv6() else ""), port


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, place: tuple[str, int], board: Board, token: str | None) -> None:
        self.board, self.token = board, token
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks a name server who we are

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that left in the middle says so itself."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENT_CONNECTION_SECONDS

    def do_POST(self) -> None:
        if not self._may_ask():
            self._say(HTTPStatus.UNAUTHORIZED, None)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._say(HTTPStatus.LENGTH_REQUIRED, None)
            return
        if int(length) > BODY_BYTES:
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, None)
            return
        try:
            answer = _answer(self.server.board, json.loads(self.rfile.read(int(length))))
        except (ValueError, TypeError, RecursionError):
            self._say(HTTPStatus.BAD_REQUEST, None)
            return
        self._say(HTTPStatus.OK, answer)

    def _may_ask(self) -> bool:
        if self.server.token is None:
            return True
        shown = self.headers.get("Authorization", "")
        return hmac.compare_digest(shown.encode(), f"Bearer {self.server.token}".encode())

    def _say(self, status: HTTPStatus, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Several lines a second would say nothing."""


def _answer(board: Board, asked: Any) -> Any:
    """Raises ValueError or TypeError where it is no operation, or not with such arguments."""
    operation, key, *rest = asked
    if operation not in OPERATIONS or not isinstance(key, str):
        raise ValueError(operation)
    return getattr(board, operation)(key, *rest)
