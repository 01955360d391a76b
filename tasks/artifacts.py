"""What a run leaves on its page in Prefect: the result, and the way to the report."""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from atelier.report.comparison import header, read_comparison, units_of_run
from atelier.stages.closing import mlflow_page, result_markdown
from atelier.stages.run_file import read_run, shown_path
from atelier.tracking.run_directory import RunDirectory

PAGE = "report/index.html"


def publish_results(run: Path) -> None:
    """Two artifacts: the table `results`, and `before-after`, the same with its sentence.

    To be called from the flow's own thread.
    """
    directory = RunDirectory(run)
    head = header(units_of_run(directory))
    table = [dict(zip(head, row.cells(), strict=True)) for row in read_comparison(directory)]
    name = read_run(directory)["run_name"]
    create_table_artifact(key="results", table=table, description=f"{name}: held-out evaluation")
    create_markdown_artifact(
        key="before-after", markdown=result_markdown(directory), description="Held-out evaluation"
    )


def publish_report(run: Path, mlflow_ui: str | None) -> None:
    """The artifact `report`: a link to the page in MLflow's UI, or else where the file lies.

    A browser opens no file:// link from Prefect's page. To be called from the flow's own thread.

    Args:
        mlflow_ui: address of an MLflow UI on the project's own store.
    """
    link = mlflow_page(RunDirectory(run), mlflow_ui, PAGE)
    where = shown_path(run / PAGE)
    if link is not None:
        create_link_artifact(
            key="report", link=link, link_text="Report of the run", description=where
        )
        return
    text = f"The report of the run is the file `{where}`; open it in a browser."
    create_markdown_artifact(key="report", markdown=text, description=where)
