"""A test point: what one image of a prompt is checked for."""

from __future__ import annotations

from dataclasses import dataclass

from atelier.unigenbench.taxonomy import Dimension, dimension_of


@dataclass(frozen=True)
class Point:
    """A test point of a prompt.

    Attributes:
        name: of its dimension, in the prompt's language.
        description: which words of the prompt it is about.
        question: asks for yes or no, where the point has words of its own for that.
    """

    name: str
    description: str
    question: str | None = None

    @property
    def dimension(self) -> Dimension:
        """Raises UnknownPoint where there is none of that name."""
        return dimension_of(self.name)
