"""Make a run and its prompt tables: what is trained on and what is held out.

    prefect deployment run prepare/run --param recipe=tiny/flow-grpo-fast

The run's id is the flow run's; the flows train, evaluate, export and report go on with it.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.frame import framed, name_of_run
from tasks import stages


@flow(name="prepare", flow_run_name=name_of_run)
@framed
def prepare(
    recipe: str | None = None,
    overrides: list[str] | None = None,
    run_name: str | None = None,
    resume: str | None = None,
    variables: dict[str, str] | None = None,
) -> Path:
    """Write the run's configuration and data/, and return its directory.

    Args:
        recipe: a recipe's name; default: the one params.yaml names.
        overrides: `dotted.key=value`, applied last.
        run_name: name of the run in Prefect and MLflow.
        resume: an existing run directory, or (the beginning of) an id under runs/, to be prepared
            anew.
        variables: of DeepGen-RL's guide, by name, as `atelier variables --json` prints them where
            the run is submitted.
    """
    run = stages.open_run(recipe, overrides or [], run_name, resume, variables)
    stages.prepare(run)
    return run
