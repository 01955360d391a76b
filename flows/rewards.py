"""Serve rewards to several runs, until this flow run is cancelled.

    prefect deployment run rewards/serve --param recipe=tiny/flow-grpo-fast --param port=8100

Without a port it takes a free one. The address is in the artifact `rewards` on its page.
"""

from __future__ import annotations

from prefect import flow

from flows.frame import framed, name_of_run
from tasks.rewards import serve


@flow(name="rewards", flow_run_name=name_of_run)
@framed
def rewards(
    recipe: str | None = None,
    overrides: list[str] | None = None,
    port: int = 0,
    host: str = "127.0.0.1",
) -> None:
    """Bring up a reward service, supervise it, and stop it with this flow run.

    Args:
        recipe: a recipe's name, whose rewards are served; default: the one params.yaml names.
        overrides: `dotted.key=value`, applied last.
        port: 0 takes a free one.
        host: address to listen on; another than loopback needs ATELIER_REWARD_TOKEN in the
            worker's environment.
    """
    serve(recipe, overrides or [], host, port)
