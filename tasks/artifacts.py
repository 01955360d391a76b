"""What a run leaves on its page in Prefect: the before/after table and the way to the report."""

from __future__ import annotations

from pathlib import Path

from prefect.artifacts import create_link_artifact, create_markdown_artifact

from atelier.stages.closing import result_markdown
from atelier.tracking.run_directory import RunDirectory


def publish_result(run: Path) -> None:
    """Two artifacts: `before-after` and `report`. To be called from the flow's own thread."""
    directory = RunDirectory(run)
    create_markdown_artifact(
        key="before-after", markdown=result_markdown(directory), description="Held-out evaluation"
    )
    page = directory.report / "index.html"
    create_link_artifact(
        key="report", link=page.as_uri(), link_text="Report of the run", description=str(page)
    )
