"""Stands for the trainer of several nodes where only processes matter: a rank without a model.

    python -m tests.support.light_ranks RUN

Two ranks hold a connection, as those of gloo do: where one is gone, the other ends with 1. Both end
with 0 when RUN/light/done is there. RUN/light/up.PID says that a rank has the connection.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
RUN = Path(sys.argv[1])
FOLDER = RUN / "light"
WAIT_SECONDS, LOOK_SECONDS = 60.0, 0.05


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with _connection() as peer:
        (FOLDER / f"up.{os.getpid()}").touch()
        peer.settimeout(LOOK_SECONDS)
        while not (FOLDER / "done").exists():
            try:
                if peer.recv(1) == b"":
                    sys.stderr.write("RuntimeError: connection closed by peer\n")
                    return 1
            except TimeoutError:
                pass
    if RANK == 0:
        (RUN / "train/metrics.jsonl").write_text('{"step": 8, "reward/mean": 0.5}\n')
    return 0


def _connection() -> socket.socket:
    """To the one other rank, which rank 0 tells where to find it."""
    place = FOLDER / "place"
    if RANK == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            place.write_text(str(server.getsockname()[1]))
            server.settimeout(WAIT_SECONDS)
            return server.accept()[0]
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            return socket.create_connection(("127.0.0.1", int(place.read_text())))
        except (OSError, ValueError):
            time.sleep(LOOK_SECONDS)
    raise TimeoutError(place)


if __name__ == "__main__":
    sys.exit(main())
