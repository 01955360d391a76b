"""Whether a model knows all tokens that its tokenizer gives it."""

from __future__ import annotations

from typing import Any

from atelier.errors import ConfigError


def require_known_tokens(where: str, tokenizer: Any, known: int) -> None:
    """Refuse a tokenizer of another model: a token without an embedding ends a run at the first
    prompt that has it.

    Args:
        known: tokens that the model has embeddings of.

    Raises:
        ConfigError: the tokenizer has others.
    """
    highest = max(tokenizer.get_vocab().values())
    if highest >= known:
        raise ConfigError(
            f"{where}: its tokenizer has a token {highest}, its language model {known} of them, "
            "from 0; take the tokenizer that the model was trained with"
        )
