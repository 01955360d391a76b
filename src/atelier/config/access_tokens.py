"""Whether the environment has the tokens that remote servers want; which variable holds one, the
configuration says. No value is ever shown."""

from __future__ import annotations

import os
from collections.abc import Iterator

from atelier.config.asked_judges import judges_asked_here
from atelier.config.placement import SAMPLER
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError

LONGEST_TOKEN = 4096  # characters; servers bound the lines of a request's head


def access_token(variable: str) -> str | None:
    """What an environment variable holds; None where it is not set, or empty."""
    return os.environ.get(variable, "").strip() or None


def bearer_token(variable: str) -> str | None:
    """A secret that this process and those it talks with have in common; None where not set.

    Raises:
        ConfigError: nothing that a header can carry. Its value is not named.
    """
    token = os.environ.get(variable) or None
    if token is not None and not is_token(token):
        raise ConfigError(
            f"{variable}: what it holds is no token: printable ASCII characters, at most "
            f"{LONGEST_TOKEN}, with no space at either end; set such a one in this environment, "
            "the same wherever it is asked for"
        )
    return token


def is_token(text: str) -> bool:
    """Whether a text arrives as a bearer token as it was sent: a header has no newline, and loses
    spaces at its ends."""
    is_bounded = 0 < len(text) <= LONGEST_TOKEN
    return is_bounded and text.isascii() and text.isprintable() and text == text.strip()


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
