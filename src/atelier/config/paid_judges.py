"""Judges that may cost money, asked about pictures that an exact checker knows all about."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.asked_judges import judged_here
from atelier.config.schema import RunConfig
from atelier.config.suite_data import heldout_format

_WORLD = "scenes"


def paid_judge_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and warning of a judge with a price or a token that is asked about prompts of the
    embedded world: recipes of published models have these until others are named."""
    is_trained_on = config.data.source == _WORLD
    asked = {section.judge for _, section in judged_here(config) if is_trained_on}
    if config.evaluation.judge is not None and heldout_format(config.data) == _WORLD:
        asked.add(config.evaluation.judge)
    paid = [
        f"judges.{name}"
        for name, judge in config.judges.items()
        if name in asked and (judge.token_env is not None or judge.prices is not None)
    ]
    if paid:
        yield (
            "data.source",
            f"{_WORLD}: {' and '.join(paid)}, which may cost money, would be asked about coloured "
            "shapes and short words of the embedded world; name prompts of yours with data.source "
            "and data.path, unless that is meant",
        )
