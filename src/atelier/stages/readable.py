"""Whether a run's policy can read the texts of its tables, before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from atelier.config.schema import RunConfig

if TYPE_CHECKING:
    from atelier.data.prompts import Prompt

READ_BY_QWEN = ("deepgen", "qwen")  # families


def require_texts(config: RunConfig, tables: Mapping[str, Sequence[Prompt]]) -> None:
    """Check that the policy can read the texts of tables, by what their rows are called.

    Raises:
        DataError: one has a mark of the language model that reads it.
    """
    from atelier.data.marks import require_unmarked

    if config.policy.family in READ_BY_QWEN:
        for what, prompts in tables.items():
            require_unmarked(prompts, what)
