"""HTTP to reward services, byte by byte: what a wire may bring, and what is sent."""

import gzip
import socket
import threading
import time
from contextlib import closing, contextmanager, suppress

import psutil
import pytest

from atelier.rewards.client import transport as module
from atelier.rewards.client.endpoints import Endpoint, ServiceRefuses
from atelier.rewards.client.transport import CannotBeAsked, Transport, Unanswered
from atelier.rewards.service.protocol import DrainAnswer
from tests.support.patience import FOR_EVER, PATIENCE, at_once


@contextmanager
def wire(answer):
    """URL of a server that reads the first bytes of a request, sends the parts of an answer and
    closes; and the bytes it read."""
    read = []

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:  # closed: the test is over
                return
            with connection:
                read.append(connection.recv(65536))
                for part in answer:
                    connection.sendall(part)
                    time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", read
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


def transport(token=None):
    return closing(Transport(2, token))


def answer(content=b"{}", head=b"200 OK", *headers):
    lines = [b"HTTP/1.1 " + head, b"Content-Length: %d" % len(content), *headers]
    return b"\r\n".join([*lines, b"", content])


def get(url, seconds=5.0):
    with transport() as asking:
        return asking.ask("GET", url + "/version", {}, None, seconds)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BROKEN = {
    "nothing": ([b""], "ServerDisconnectedError: the connection was closed before an answer"),
    "a line": ([HEAD], "ServerDisconnectedError: the connection was closed before an answer"),
    "no HTTP": ([b"hello\r\n\r\n"], "ClientResponseError: Bad status line"),
    "no status": ([b"HTTP/1.1 abc\r\n\r\n"], "ClientResponseError: Bad status line"),
    "no header": ([HEAD + b"nonsense\r\n\r\n"], "ClientResponseError: Invalid header"),
    "long header": ([HEAD, b"X: " + b"x" * 10_000], "ClientResponseError: Got more than"),
    "negative length": ([HEAD + b"Content-Length: -5\r\n\r\n"], "ClientResponseError: Invalid"),
    "no chunk": ([CHUNKED + b"zz\r\n"], "ClientResponseError: Invalid character in chunk size"),
    "chunk cut": ([CHUNKED, b"5\r\nab"], "ClientPayloadError: Not enough data"),
    "length cut": ([HEAD + b"Content-Length: 9\r\n\r\nab"], "(received 2 of 9 bytes)"),
    "no gzip": (
        [answer(b"nonsense", b"200 OK", b"Content-Encoding: gzip")],
        "Can not decode content-encoding: gzip",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_whole_answer_is_none_and_its_reason_is_told(name):
    sent, reason = BROKEN[name]
    with wire(sent) as (url, _), pytest.raises(Unanswered) as raised:
        get(url)
    assert reason in str(raised.value)
    assert not isinstance(raised.value, CannotBeAsked)
    assert "400" not in str(raised.value), "it looks as if the service had answered that"


def test_a_chunk_that_breaks_an_answer_in_the_middle_ends_it_in_time():
    """aiohttp closes the connection and waits on, so the time limit is what ends it."""
    with wire([CHUNKED, b"1\r\n{\r\n", b"zz\r\n"]) as (url, _), pytest.raises(Unanswered):
        get(url, seconds=1.0)


@pytest.mark.parametrize(
    "sent",
    [
        [answer()],
        [CHUNKED, b"1\r\n{\r\n", b"1\r\n}\r\n", b"0\r\n\r\n"],
        [b"HTTP/1.0 200 OK\r\n\r\n", b"{}"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", answer()],
        [answer(gzip.compress(b"{}"), b"200 OK", b"Content-Encoding: gzip")],
    ],
)
def test_an_answer_is_whole_however_it_comes(sent):
    with wire(sent) as (url, _):
        found = get(url)
    assert (found.status, found.reason, found.content) == (200, "OK", b"{}")


@pytest.mark.parametrize("head", [b"302 Found", b"307 Temporary Redirect", b"308"])
def test_a_redirection_is_an_answer(head):
    with wire([answer()]) as (other, asked):
        location = b"Location: " + other.encode()
        with wire([answer(b"", head, location)]) as (url, _):
            found = get(url)
    assert str(found.status) in head.decode()
    assert not asked


@pytest.mark.parametrize("packed", [False, True])
def test_an_answer_that_does_not_end_is_given_up(monkeypatch, packed):
    monkeypatch.setattr(module, "_LONGEST_ANSWER", 100_000)
    content = b" " * 100_001
    if packed:
        sent = answer(gzip.compress(content), b"200 OK", b"Content-Encoding: gzip")
        assert len(sent) < 1000
    else:
        sent = answer(content)
    with wire([sent]) as (url, _), pytest.raises(Unanswered, match="more than 100000 bytes"):
        get(url)


def test_a_refusal_before_the_body_is_read_is_heard():
    refusal = answer(b"{}", b"413 Too Large", b"Connection: close")
    with wire([refusal]) as (url, _), transport() as asking:
        found = asking.ask("POST", url, {}, b"x" * (32 << 20), 20.0)
    assert (found.status, found.reason) == (413, "Too Large")


def test_a_service_that_reads_nothing_is_left_no_connection():
    with socket.create_server(("127.0.0.1", 0)) as silent, transport() as asking:
        port = silent.getsockname()[1]
        for _ in range(3):
            with pytest.raises(Unanswered, match="no answer in time"):
                asking.ask("POST", f"http://127.0.0.1:{port}", {}, b"x" * (16 << 20), 0.3)
        time.sleep(0.1)
        ours = [one for one in psutil.Process().net_connections() if one.raddr]
        assert port not in [one.raddr.port for one in ours]


def test_closing_ends_an_upload_that_nobody_reads():
    found = []

    def ask():
        try:
            asking.ask("POST", f"http://127.0.0.1:{port}", {}, b"x" * (16 << 20), 60.0)
        except Unanswered as error:
            found.append(str(error))

    with socket.create_server(("127.0.0.1", 0)) as silent, transport() as asking:
        port = silent.getsockname()[1]
        waiting = threading.Thread(target=ask, daemon=True)
        waiting.start()
        connection, _ = silent.accept()
        with connection:
            connection.recv(1)
            asking.close()
            waiting.join(PATIENCE)
    assert found == ["the rewards were closed"]


def test_who_does_not_take_the_connection_is_given_up_early(monkeypatch):
    monkeypatch.setattr(module, "_CONNECT_SECONDS", 0.3)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        waiting = [socket.socket() for _ in range(3)]  # until there is no place any more
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        with (
            pytest.raises(Unanswered, match=r"no answer in time \(ConnectionTimeoutError\)"),
            at_once(),
        ):
            get(url, FOR_EVER)
        for one in waiting:
            one.close()


def test_a_service_is_sent_what_is_asked_and_nothing_of_the_environment(monkeypatch, tmp_path):
    """The token by its header only; no proxy, no login of .netrc, no cookie of an answer before."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".netrc").write_text("default login somebody password else\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    cookie = answer(b"{}", b"200 OK", b"Set-Cookie: a=b; Path=/", b"Connection: close")
    with wire([cookie]) as (url, read):
        with transport("SECRET") as asking:
            for _ in range(2):
                kind = {"Content-Type": "text/x"}
                assert asking.ask("POST", url + "/score", kind, b"body", 5.0).status == 200
        get(url)
    for request in read[:2]:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /score HTTP/1.1"
        assert b"Authorization: Bearer SECRET" in lines
        assert b"Content-Type: text/x" in lines
        assert head.count(b"SECRET") == 1
        assert b"cookie" not in head.lower()
        assert body == b"body"
    assert b"authorization" not in read[2].lower()


def test_a_connection_is_kept_for_the_next_request():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def serve():
            connection, _ = listening.accept()
            with connection:
                for _ in range(3):
                    connection.recv(65536)
                    connection.sendall(answer())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with transport() as asking:
            for _ in range(3):
                assert asking.ask("GET", url, {}, None, 5.0).status == 200
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_token_that_is_no_header_is_said_so_and_not_repeated():
    with (
        wire([answer()]) as (url, read),
        transport("SEC\nRET") as asking,
        pytest.raises(CannotBeAsked) as raised,
    ):
        asking.ask("GET", url, {}, None, 5.0)
    assert "RET" not in str(raised.value)
    assert not read or not read[0]


@contextmanager
def talkative(respond):
    """URL of a server that keeps connections: `respond(connection, target, body)` answers each
    request; and the targets with the number of their connection."""
    asked, accepted = [], []

    def serve(connection, number):
        with connection, connection.makefile("rb") as stream, suppress(OSError):
            while line := stream.readline():
                length = 0
                while (header := stream.readline().strip()) != b"":
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                target = line.split()[1].decode()
                asked.append((target, number))
                respond(connection, target, stream.read(length))

    def accept():
        with suppress(OSError):
            while True:
                accepted.append(listening.accept()[0])
                args = accepted[-1], len(accepted)
                threading.Thread(target=serve, args=args, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


UNASKED = answer(b'{"error":{"type":"x","message":"m","retryable":false}}', b"401 No")


def test_an_answer_that_nobody_asked_for_is_nobodys():
    def respond(connection, target, body):
        connection.sendall(answer(target.encode()))
        time.sleep(0.02)
        connection.sendall(UNASKED)

    with talkative(respond) as (url, asked), transport() as asking:
        for number in range(4):
            reply = asking.ask("POST", f"{url}/{number}", {}, b"body", 5.0)
            assert (reply.status, reply.content) == (200, f"/{number}".encode())
            time.sleep(0.1)
    assert len(asked) == 4


def test_a_refusal_on_a_kept_connection_is_asked_once_more_on_a_new_one():
    """It comes as the next request is under way, so nothing tells it from an answer to that."""

    def respond(connection, target, body):
        refuses = target == "/score" and len(asked) == 2
        connection.sendall(UNASKED if refuses else answer(b'{"running": 1}'))

    with talkative(respond) as (url, asked), transport() as asking:
        endpoint = Endpoint(url, asking, None)
        for _ in range(3):
            end = time.monotonic() + PATIENCE
            assert endpoint.post("/score", "text/x", b"body", DrainAnswer, end).running == 1
        assert endpoint.get("/version", DrainAnswer, time.monotonic() + PATIENCE).running == 1
    connections = [number for _, number in asked]
    assert connections[:3] == [1, 1, 2]
    assert connections[-1] not in connections[:-1], "what a service is, is asked on a new one"


def test_a_refusal_on_a_new_connection_is_believed_at_once():
    def respond(connection, target, body):
        connection.sendall(UNASKED)

    with talkative(respond) as (url, asked), transport() as asking:
        endpoint = Endpoint(url, asking, None)
        with pytest.raises(ServiceRefuses):
            endpoint.post("/score", "text/x", b"body", DrainAnswer, time.monotonic() + PATIENCE)
    assert len(asked) == 1
