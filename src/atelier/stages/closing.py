"""What a finished run says of itself: the result, where its report lies, how to open MLflow."""

from __future__ import annotations

from pathlib import Path

from atelier.config.resolve import load_stage_config
from atelier.report.comparison import as_markdown, as_text, headline, read_comparison, units_of_run
from atelier.stages.run_file import read_run, warnings_of
from atelier.tracking.mlflow_store import DEFAULT_URI, sqlite_path, tracking_uri, ui_command
from atelier.tracking.run_directory import RunDirectory, read_json_object


def closing_words(root: Path, ui: str | None = None) -> str:
    """For the console; where the run is seen in MLflow last, or the command that opens its UI.

    Args:
        ui: as for `mlflow_page`.
    """
    run = RunDirectory(root)
    rows = read_comparison(run)
    uri = tracking_uri(load_stage_config(run.config("report")))
    lines = [
        "",
        headline(rows),
        "",
        as_text(rows, units_of_run(run)),
        "",
        *(f"warning: {text}\n" for text in warnings_of(run)),
        f"Report:  {run.report / 'index.html'}",
        f"MLflow:  {mlflow_page(run, ui) or ui_command(uri)}",
    ]
    return "\n".join(lines) + "\n"


def result_markdown(run: RunDirectory) -> str:
    """For a Prefect artifact."""
    rows = read_comparison(run)
    title = f"# {read_run(run)['run_name']}"
    warnings = [f"> {text}" for text in warnings_of(run)]
    return "\n\n".join(
        [
            title,
            headline(rows),
            as_markdown(rows, units_of_run(run)),
            *warnings,
            f"Run: `{run.root.name}`",
        ]
    )


def mlflow_page(run: RunDirectory, ui: str | None, artifact: str | None = None) -> str | None:
    """Where the MLflow UI shows the run, or an artifact of it; None where no UI shows it.

    Args:
        ui: address of a UI on the project's own store. A tracking server has its own.
        artifact: its path among the MLflow run's artifacts.
    """
    uri = load_stage_config(run.config("report")).tracking.mlflow_uri
    server = uri if uri is not None and sqlite_path(uri) is None else None
    page = server or (ui if uri in (None, DEFAULT_URI) else None)
    sent = run.root / "mlflow.json"
    if page is None or not sent.exists():
        return None
    state = read_json_object(sent)
    if not {"experiment_id", "run_id"} <= state.keys():
        return None
    where = f"experiments/{state['experiment_id']}/runs/{state['run_id']}"
    where += f"/artifactPath/{artifact}" if artifact else ""
    # The mode that shows training runs: MLflow opens in its other one.
    return f"{page.rstrip('/')}/#/{where}?workflowType=machine_learning"
