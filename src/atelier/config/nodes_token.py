"""The secret that nodes of one run share: whether this environment has it, where it is needed."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.access_tokens import bearer_token
from atelier.config.loopback import is_loopback
from atelier.config.schema import RunConfig
from atelier.config.sections.launch import LaunchConfig
from atelier.errors import ConfigError

# Bearer token of the other nodes; needed where node 0 is reached from other machines.
TOKEN_VARIABLE = "ATELIER_NODES_TOKEN"


def nodes_token(address: str, key: str) -> str | None:
    """What shows node 0 that another node is of its run, from the environment; None where there is
    none, and node 0 asks for none because only its own machine reaches it.

    Args:
        address: node 0's.
        key: what the user names it with.

    Raises:
        ConfigError: other machines would reach node 0, and there is no token; or it is none that a
            request can carry.
    """
    token = bearer_token(TOKEN_VARIABLE)
    if token is None and not is_loopback(address):
        raise ConfigError(
            f"{key}: {address} can be reached from other machines, and {TOKEN_VARIABLE} is not set "
            "here, or is empty: set it in the environment of all nodes, to the same secret on each"
        )
    return token


def board_token(launch: LaunchConfig) -> str | None:
    """What the other nodes have to show; None where they need not.

    Raises:
        ConfigError: as of `nodes_token`.
    """
    if launch.nodes == 1:
        return None
    return nodes_token(launch.master_address, "launch.master_address")


def nodes_token_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and warning of a token that this environment lacks: the run may start in another one."""
    try:
        board_token(config.launch)
    except ConfigError as error:
        key, _, wrong = str(error).partition(": ")
        yield key, f"{wrong}; nothing starts without it"
