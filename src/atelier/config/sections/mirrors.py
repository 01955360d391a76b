"""The sections of `tracking:` that name mirrors beside MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from atelier.config.sections.base import Section, Title


class MirrorConfig(Section):
    """Where a run is shown besides in MLflow. Its package is one of Atelier's extras."""

    enabled: bool = Field(False, description="Whether the run is shown there, too.")
    mode: Literal["offline", "online"] = Field(
        "offline",
        description="offline: files in the run's folder mirrors/, to be sent by its own command; "
        "online: sent while the run goes on, with the token that its own login keeps.",
    )
    project: Title = Field("atelier", min_length=1, description="Project of the run there.")
    run_name: Title | None = Field(
        None, min_length=1, description="Name of the run there; default: the run's."
    )


class WandbConfig(MirrorConfig):
    """Weights & Biases (extra `wandb`)."""


class SwanlabConfig(MirrorConfig):
    """SwanLab (extra `swanlab`)."""


class MirrorsConfig(Section):
    """What the sections of mirrors have in common with `tracking`, whose base this is."""

    wandb: WandbConfig = WandbConfig()
    swanlab: SwanlabConfig = SwanlabConfig()

    def mirrors(self) -> Iterator[tuple[str, MirrorConfig]]:
        """Name and section of every mirror that is enabled."""
        for name, section in (("wandb", self.wandb), ("swanlab", self.swanlab)):
            if section.enabled:
                yield name, section
