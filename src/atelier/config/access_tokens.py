"""Whether the environment has the tokens that remote servers want; which variable holds one, the
configuration says. No value is ever shown."""

from __future__ import annotations

import os
from collections.abc import Iterator

from atelier.config.judge_work import judges_asked_here
from atelier.config.placement import SAMPLER
from atelier.config.schema import RunConfig


def access_token(variable: str) -> str | None:
    """What an environment variable holds; None where it is not set, or empty."""
    return os.environ.get(variable, "").strip() or None


def access_token_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and warning of tokens that this environment lacks."""
    wanted = {f"judges.{name}": config.judges[name].token_env for name in judges_asked_here(config)}
    if config.sampler is not None:
        wanted[SAMPLER] = config.sampler.token_env
    for key, variable in wanted.items():
        if variable is not None and access_token(variable) is None:
            yield (
                f"{key}.token_env",
                f"{variable} is not set in this environment, or is empty, and nothing can be asked "
                "without it: set it where the run is started",
            )
