"""Compare finished runs: which is better on what, and by how much.

prefect deployment run compare/run --param runs='["<id>", "<id>"]'
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.frame import framed, name_of_run
from tasks.comparison import compare_runs


@flow(name="compare", flow_run_name=name_of_run)
@framed
def compare(runs: list[str]) -> Path:
    """Write the page of the comparison, and put its text on this flow run's page.

    Args:
        runs: two or more run directories, or ids under runs/; runs that differ in the seed only
            are one group.
    """
    return compare_runs(runs)
