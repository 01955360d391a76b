"""The comparison of finished runs, on a page and as an artifact."""

from __future__ import annotations

from pathlib import Path

from prefect import Task
from prefect.artifacts import create_markdown_artifact

from atelier.config.paths import from_root
from atelier.errors import AtelierError
from atelier.stages.find_run import find_run
from atelier.stages.run_file import shown_path
from tasks.outcome import failed, value_of

FOLDER = ".atelier/compare"


def compare_runs(names: list[str]) -> Path:
    """Compare runs, publish the text as the artifact `comparison`, and return the page.

    Raises:
        ConfigError, DataError: the runs cannot be found, or cannot be compared.
    """
    task = Task(_compare, name="compare", task_run_name="compare")
    return Path(value_of(task(names, return_state=True)))


def _compare(names: list[str]) -> object:
    from atelier.report import runs_comparison, runs_page

    try:
        comparison = runs_comparison.compare_runs([find_run(name) for name in names])
        folder = from_root(FOLDER) / comparison.short_id
        page = runs_page.write_page(comparison, folder)
    except AtelierError as error:
        return failed(error)
    where = shown_path(page)
    create_markdown_artifact(
        key="comparison",
        markdown=f"{comparison.as_markdown()}\n\nWith images: `{where}`",
        description=where,
    )
    return page
