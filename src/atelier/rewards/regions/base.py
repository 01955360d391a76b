"""What counts regions, and which there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from PIL.Image import Image

from atelier.config.sections.regions import RegionsConfig
from atelier.mmmg.regions import Regions


class RegionCounter(Protocol):
    """Counts the regions of pictures. Making one costs nothing: models are loaded by the first
    count."""

    @property
    def version(self) -> str:
        """What counts: counts of different versions do not compare."""
        ...

    def weights(self) -> Sequence[Path]:
        """The model files that decide the counts."""
        ...

    def count(self, image: Image) -> Regions:
        """Count a picture of any mode and size.

        Raises:
            ConfigError: it can never count as it is configured, such as without its model file.
        """
        ...


def region_counter(config: RegionsConfig, key: str) -> RegionCounter:
    """The counter of a section.

    Args:
        key: where the section stands, for messages.
    """
    if config.counter == "sam2":
        from atelier.rewards.regions.sam2 import Sam2Counter

        return Sam2Counter(config, key)
    from atelier.rewards.regions.classical import ClassicalCounter

    return ClassicalCounter(config.read_text)
