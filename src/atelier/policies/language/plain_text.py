"""Words of a prompt are words to a language model, and no marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atelier.errors import DataError


def require_plain(words: str, tokenizer: Any, where: str, turns: Sequence[str] = ()) -> None:
    """Refuse words in which the tokenizer would find marks: they would end the user's turn, or
    stand for an image that is not there.

    Args:
        turns: marks of a conversation that the tokenizer does not call special.

    Raises:
        DataError: naming the mark and `where` the words are from.
    """
    found = [mark for mark in (*tokenizer.all_special_tokens, *turns) if mark in words]
    if found:
        raise DataError(
            f"{where}: {words[:80]!r} has {found[0]}, which is a mark of the language model; take "
            "it out of the text"
        )
