"""What a finished run says of itself: the result, where its report lies, how to open MLflow."""

from __future__ import annotations

from pathlib import Path

from atelier.config.resolve import load_stage_config
from atelier.report.comparison import as_markdown, as_text, headline, read_comparison
from atelier.stages.run_file import read_run
from atelier.tracking.mlflow_store import tracking_uri, ui_command
from atelier.tracking.run_directory import RunDirectory


def closing_words(root: Path) -> str:
    """For the console, the command that opens the MLflow UI last."""
    run = RunDirectory(root)
    rows = read_comparison(run)
    uri = tracking_uri(load_stage_config(run.config("report")))
    lines = [
        "",
        headline(rows),
        "",
        as_text(rows),
        "",
        f"Report:  {run.report / 'index.html'}",
        f"MLflow:  {ui_command(uri)}",
    ]
    return "\n".join(lines) + "\n"


def result_markdown(run: RunDirectory) -> str:
    """For a Prefect artifact."""
    rows = read_comparison(run)
    description = read_run(run)
    return "\n\n".join(
        [f"# {description['run_name']}", headline(rows), as_markdown(rows), f"Run: `{run.root}`"]
    )
