"""Help a run of another machine to train.

    prefect deployment run node/run --param address=10.0.0.1

One flow run a node, in the work pool `atelier-nodes`, which workers on the other machines serve
(docs/many-machines.md).
"""

from __future__ import annotations

from prefect import flow

from atelier.config.sections.launch import LaunchConfig
from atelier.stages.nodes.board import WAIT_SECONDS
from flows.frame import framed
from tasks.node import help_train


@flow(name="node")
@framed
def node(
    address: str,
    port: int = LaunchConfig().master_port,
    rank: int | None = None,
    wait: float = WAIT_SECONDS,
) -> None:
    """Wait until node 0 trains, compute with it, and end with it.

    Args:
        address: node 0's launch.master_address.
        port: its launch.master_port.
        rank: which node this is to be, from 1 on; default: one that is missing.
        wait: seconds that node 0 may take until it trains.
    """
    help_train(address, port, rank, wait)
