"""What a node needs before it has a run: to be node 0, and a token if others reach it."""

from __future__ import annotations

from atelier.config.access_tokens import bearer_token
from atelier.config.loopback import is_loopback
from atelier.config.schema import RunConfig
from atelier.config.sections.launch import LaunchConfig
from atelier.errors import ConfigError
from atelier.stages.nodes.board import TOKEN_VARIABLE


def require_first_node(config: RunConfig) -> None:
    """Refuse to make a run on another node than 0.

    Raises:
        ConfigError: `launch.node_rank` says that this is one that helps.
    """
    launch = config.launch
    if launch.node_rank:
        raise ConfigError(
            f"launch.node_rank: {launch.node_rank}: node 0 alone has the run; here start: atelier "
            f"node --address {launch.master_address} --port {launch.master_port} "
            f"--rank {launch.node_rank}"
        )


def board_token(launch: LaunchConfig) -> str | None:
    """What the other nodes have to show, from the environment; None where they need not.

    Raises:
        ConfigError: other machines would reach the meeting place, and there is no token, or none
            that a request can carry.
    """
    if launch.nodes == 1:
        return None
    token = bearer_token(TOKEN_VARIABLE)
    if token is None and not is_loopback(launch.master_address):
        raise ConfigError(
            f"launch.master_address: {launch.master_address} can be reached from other machines: "
            f"set {TOKEN_VARIABLE} in the environment of all nodes, the same on each"
        )
    return token
