"""A reward service as a flow run of its own: shared by several runs, owned by none of them."""

from __future__ import annotations

from prefect import Task
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from atelier.config.resolve import resolve
from atelier.errors import AtelierError
from atelier.stages.run_file import runs_root
from tasks import output
from tasks.outcome import failed, value_of


def serve(recipe: str | None, overrides: list[str], host: str, port: int) -> None:
    """Serve the rewards of a configuration until the flow run is cancelled.

    Its log and records lie in runs/<flow run id>/, where a later run finds what a killed one left.

    Raises:
        ConfigError: the rewards cannot be served so.
        Stopped: the service failed too often.
    """
    task = Task(_serve, name="serve", task_run_name="serve")
    value_of(task(recipe, overrides, host, port, return_state=True))


def _serve(recipe: str | None, overrides: list[str], host: str, port: int) -> object:
    from atelier.stages.servers import shared

    folder = runs_root() / str(flow_run.id)
    output.to_file(folder)
    try:
        config = resolve(recipe, overrides)
        shared.serve(config, folder, host, port, until=lambda: False, ready=_publish)
    except AtelierError as error:
        return failed(error)
    return None


def _publish(url: str) -> None:
    text = (
        f"Rewards are served at `{url}` until this flow run is cancelled. A run uses them with "
        f"`rewards.<name>.placement=remote` and `rewards.<name>.urls=[{url}]`."
    )
    create_markdown_artifact(key="rewards", markdown=text, description=url)
