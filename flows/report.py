"""Write the page of a run.

prefect deployment run report/run --param run=<id under runs/>
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.frame import framed, mlflow_ui, name_of_run
from tasks import stages
from tasks.artifacts import publish_report


@flow(name="report", flow_run_name=name_of_run)
@framed
def report(run: str) -> Path:
    """Write report/index.html, and link it from the flow run's page.

    Args:
        run: a run directory, or (the beginning of) an id under runs/.
    """
    directory = stages.existing_run(run)
    stages.report(directory)
    publish_report(directory, mlflow_ui())
    return directory
