"""What MLflow and its mirrors are shown."""

from __future__ import annotations

from pydantic import Field

from atelier.config.sections.base import Fraction, NonNegativeInt, PositiveInt, Title
from atelier.config.sections.mirrors import MirrorsConfig


class TrackingConfig(MirrorsConfig):
    """Where the run is mirrored for people to look at: in MLflow, and where else they like."""

    mlflow_uri: str | None = Field(
        None, description="MLflow tracking URI; default: the SQLite store of the project."
    )
    experiment: Title = Field("atelier", description="MLflow experiment.")
    run_name: Title | None = Field(None, description="Name of the run; default: recipe and seed.")
    images: PositiveInt = Field(
        16, description="Images in a logged grid, and best and worst ones kept of a step."
    )
    samples_every: NonNegativeInt = Field(
        10,
        description="Steps between two whose best and worst images are kept; 0: none. The last "
        "step is one.",
    )
    judge_traces: Fraction = Field(
        0.01,
        description="Share of the questions to judges whose answers are shown, drawn at random.",
    )
