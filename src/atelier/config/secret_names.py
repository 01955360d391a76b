"""Which names are those of secrets: of a variable, an option or a parameter whose value is one.

The configuration is kept with the run and shown, so no secret may stand in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

from pydantic import JsonValue

# Of the last words of a name only: max_tokens and prompt_cache_key are no secrets.
_SECRET = re.compile(
    r"(?:^|[_-])(?:(?:access|api|auth|bearer|client|hf|hub|id|refresh|session|user)[_-]?token"
    r"|(?:access|api|private|secret)[_-]?key"
    r"|(?:proxy[_-])?authorization|bearer|credentials?|passw(?:or)?d|passphrase|secret)$|^token$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])([A-Z_][A-Z0-9_]*)=.", re.DOTALL)
_OF_VARIABLE = re.compile(r"(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_USER = re.compile(r"(://)[^/]*@")
_OPTION = re.compile(r"--([A-Za-z][A-Za-z0-9_-]*)(=.*)?", re.DOTALL)


def without_secrets(value: Any, key: str) -> Any:
    """What may be shown of a JSON value: nothing of secrets by their key, of a variable's name that
    may be the token itself, and of users and passwords in addresses."""
    if key == "token_env" or _SECRET.search(key):
        return "..."
    if isinstance(value, dict):
        return {name: without_secrets(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [without_secrets(one, key) for one in value]
    return without_user(value) if isinstance(value, str) else value


def without_user(address: str) -> str:
    """A text in which no address shows the user and password that it may carry."""
    return _USER.sub(r"\1...@", address)


def secret_parameters(value: JsonValue, path: str) -> Iterator[str]:
    """Dotted keys below `path`, at any depth, that are named as a secret is and hold something."""
    if isinstance(value, dict):
        for name, one in value.items():
            key = f"{path}.{name}"
            if one not in (None, "") and _SECRET.search(name.strip()):
                yield key
            else:
                yield from secret_parameters(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from secret_parameters(one, path)


def secret_words(words: Sequence[str], variables: Collection[str] = ()) -> Iterator[str]:
    """What words of a command line give a secret to: NAME=VALUE, --name=VALUE, --name VALUE.

    Args:
        variables: names of variables that hold tokens, besides those that are named so.
    """
    for word, following in pairwise([*words, "-"]):
        for name in _VARIABLE.findall(word):
            if name in variables or _OF_VARIABLE.search(name):
                yield name
        option = _OPTION.fullmatch(word)
        if option is None or not _SECRET.search(option[1]):
            continue
        if option[2] or not following.startswith("-"):
            yield f"--{option[1]}"
