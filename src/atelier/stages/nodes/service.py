"""Node 0's board over HTTP: POST / of [operation, arguments...], answered with a value as JSON."""

from __future__ import annotations

import hmac
import json
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from atelier.config.loopback import is_loopback
from atelier.errors import ConfigError
from atelier.stages.nodes.board import HELPERS_KEYS, Board

OPERATIONS = ("put", "read", "put_first", "remove_if", "count")
BODY_BYTES = 64 * 1024
_LONGEST_LENGTH = 20  # digits of a Content-Length that is read as a number
# Connections at a time, besides one of each node: each takes a thread and a file descriptor.
CONNECTIONS = 64
# For a whole request: one that says a byte now and then must not keep what it takes.
REQUEST_SECONDS = 10.0


@contextmanager
def served(board: Board, address: str, port: int, token: str | None, nodes: int) -> Iterator[None]:
    """Answer visitors inside.

    Args:
        address: as they name this machine. A loopback address is the only one listened on; else
            all are, because a name may mean another address to each machine.
        token: what visitors have to show; None: nothing.
        nodes: how many there are; each asks one question at a time.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    try:
        server = _Server(_place(address, port), board, token, CONNECTIONS + nodes)
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
    """One request a connection, a thread each, for no more than REQUEST_SECONDS.

    Beyond `most` connections the oldest is closed for a new one: a node's question is answered in
    milliseconds, so what is old is no node's, and strangers keep none of them out.
    """

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, place: tuple[str, int], board: Board, token: str | None, most: int) -> None:
        self.board, self.token, self._most = board, token, most
        self._open: dict[socket.socket, float] = {}  # and since when, the oldest first
        self._lock = threading.Lock()
        if ":" in place[0]:
            self.address_family = socket.AF_INET6
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks a name server who we are

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= self._most:
                self._hang_up(next(iter(self._open)))
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Several times a second: end requests that take too long."""
        with self._lock:
            late = time.monotonic() - REQUEST_SECONDS
            for request in [one for one, since in self._open.items() if since < late]:
                self._hang_up(request)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().close_request(request)

    def _hang_up(self, request: socket.socket) -> None:
        """Wakes its thread, which closes the connection."""
        del self._open[request]
        with suppress(OSError):  # the visitor was faster
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor that left in the middle says so itself."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        if not self._may_ask():
            self._say(HTTPStatus.UNAUTHORIZED)
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._say(HTTPStatus.LENGTH_REQUIRED)
            return
        if len(length) > _LONGEST_LENGTH or int(length) > BODY_BYTES:
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        try:
            answer = _answer(self.server.board, json.loads(self.rfile.read(int(length))))
            body = json.dumps(answer).encode()
        except (ValueError, TypeError, RecursionError):
            self._say(HTTPStatus.BAD_REQUEST)
            return
        self._say(HTTPStatus.OK, body)

    def _may_ask(self) -> bool:
        if self.server.token is None:
            return True
        shown = self.headers.get("Authorization", "")
        return hmac.compare_digest(shown.encode(), f"Bearer {self.server.token}".encode())

    def _say(self, status: HTTPStatus, body: bytes = b"null") -> None:
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
    if operation != "read" and not key.startswith(HELPERS_KEYS):
        raise ValueError(key)
    return getattr(board, operation)(key, *rest)
