"""What a node needs before it has a run: to be node 0."""

from __future__ import annotations

from atelier.config.schema import RunConfig
from atelier.errors import ConfigError


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
