"""Serve the rewards of a configuration file.

    python -m atelier.rewards.service --config rewards.yaml --port 8400

The bearer token that clients must show is read from the environment variable ATELIER_REWARD_TOKEN;
without one the service binds loopback addresses only. Exit code 2: bad configuration.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from pathlib import Path

from atelier import telemetry
from atelier.config.access_tokens import bearer_token
from atelier.config.loopback import is_loopback
from atelier.errors import AtelierError, ConfigError
from atelier.rewards.service.protocol import TOKEN_VARIABLE
from atelier.tracking.run_directory import write_text_atomically

_KEEP_ALIVE_SECONDS = 75  # more than the client's, so that it is the client who closes
_SHUTDOWN_SECONDS = 10


def main() -> int:
    arguments = _arguments()
    telemetry.off_by_default()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        _serve(arguments)
    except AtelierError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"OSError: {arguments.host}:{arguments.port}: {error}\n")
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m atelier.rewards.service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, required=True, help="file with `rewards:`")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (loopback)")
    parser.add_argument("--port", type=int, default=8400, help="0 takes a free one")
    parser.add_argument("--port-file", type=Path, help="file the port is written to")
    parser.add_argument(
        "--judge-usage", type=Path, help="file in which it is counted what judges are asked"
    )
    bounds = parser.add_argument_group("bounds")
    bounds.add_argument("--max-body-mib", type=int, default=128, help="of a request")
    bounds.add_argument("--max-items", type=int, default=256, help="of a request")
    bounds.add_argument("--max-megapixels", type=float, default=16.8, help="of a picture")
    bounds.add_argument("--max-queue", type=int, default=32, help="requests waiting or scored")
    bounds.add_argument("--max-seconds", type=float, default=600.0, help="for one request")
    return parser.parse_args()


def _serve(arguments: argparse.Namespace) -> None:
    import uvicorn

    from atelier.rewards.service.app import Limits, create_app
    from atelier.rewards.service.gate import Bounds
    from atelier.rewards.service.pictures import PixelBounds
    from atelier.rewards.service.served import build
    from atelier.rewards.service.settings import read_settings

    token = bearer_token(TOKEN_VARIABLE)
    require_token_beyond_loopback(arguments.host, token)
    rewards = build(read_settings(arguments.config), arguments.judge_usage)
    picture = int(arguments.max_megapixels * 1e6)
    limits = Limits(
        bounds=Bounds(body=arguments.max_body_mib << 20, queue=arguments.max_queue),
        pixels=PixelBounds(picture=picture, request=4 * picture),
        items=arguments.max_items,
        seconds=arguments.max_seconds,
    )
    config = uvicorn.Config(
        create_app(rewards, limits, token),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    with bound_socket(arguments.host, arguments.port) as listening:
        # Else a process that a scorer forks would keep the port after the service's end.
        os.register_at_fork(after_in_child=listening.close)
        port = listening.getsockname()[1]
        logging.info("serving %s on %s port %d", ", ".join(rewards), arguments.host, port)
        if arguments.port_file is not None:
            write_text_atomically(arguments.port_file, f"{port}\n")
        uvicorn.Server(config).run(sockets=[listening])


def require_token_beyond_loopback(host: str, token: str | None) -> None:
    """Raise ConfigError where others could reach the service and no token is asked for."""
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines: set {TOKEN_VARIABLE} in the environment "
            "of the service and of its clients, or bind 127.0.0.1"
        )


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket for uvicorn; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio turns Nagle's delay off only then, which else costs 40 ms an answer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening


if __name__ == "__main__":
    sys.exit(main())
