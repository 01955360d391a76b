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


def bearer_token(variable: str) -> str | None:
    """The secret in an environment variable, without what surrounds it, such as the newline of a
    file it came from; None where the variable is not set, or empty. One of nothing but spaces was
    meant to be a secret, and is none.

    Raises:
        ConfigError: nothing that a header can carry. Its value is not named.
    """
    held = os.environ.get(variable)
    if not held:
        return None
    token = held.strip()
    is_word = token.isascii() and token.isprintable() and " " not in token
    if not is_word or not 0 < len(token) <= LONGEST_TOKEN:
        raise ConfigError(
            f"{variable}: what it holds is no token: one word of printable ASCII characters, at "
            f"most {LONGEST_TOKEN}; set such a one in this environment, the same wherever it is "
            "asked for"
        )
    return token


def token_of(variable: str | None, key: str) -> str | None:
    """The token that servers of a key of the configuration want; None where they want none.

    Raises:
        ConfigError: the environment does not hold it, or nothing that a header can carry.
    """
    if variable is None:
        return None
    try:
        token = bearer_token(variable)
    except ConfigError as error:
        raise ConfigError(f"{key}.token_env: {error}") from error
    if token is None:
        raise ConfigError(f"{key}.token_env: {variable} is not set in the environment, or is empty")
    return token


def access_token_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and warning of tokens that this environment lacks."""
    wanted = {f"judges.{name}": config.judges[name].token_env for name in judges_asked_here(config)}
    if config.sampler is not None:
        wanted[SAMPLER] = config.sampler.token_env
    for key, variable in wanted.items():
        try:
            if variable is None or bearer_token(variable) is not None:
                continue
            wrong = f"{variable} is not set in this environment, or is empty"
        except ConfigError as error:
            wrong = str(error)
        told = f"{wrong}, and nothing can be asked without it: set it where the run is started"
        yield f"{key}.token_env", told
