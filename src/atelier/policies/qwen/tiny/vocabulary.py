"""A byte-level BPE tokenizer cut down to what some texts need.

The cut tokenizes those texts as the whole does, token by token, so a template has as many tokens
as it has for the published models; any other text comes back from it too, in smaller pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

Pair = tuple[str, str]


def cut(whole: Tokenizer, texts: Iterable[str], marks: Sequence[str]) -> Tokenizer:
    """A tokenizer of the 256 bytes, the merges that the texts need, and the marks, in this order.

    Args:
        whole: byte-level BPE.
        marks: special tokens that are kept, by their content.

    Raises:
        ValueError: a mark is not one of the whole's.
    """
    state: dict[str, Any] = json.loads(whole.to_str())
    merges = [tuple(one) for one in state["model"]["merges"]]
    kept = _needed(merges, _pieces(whole, texts, marks))
    vocabulary = [*sorted(ByteLevel.alphabet()), *dict.fromkeys("".join(pair) for pair in kept)]
    known = {one["content"]: one for one in state["added_tokens"]}
    unknown = [mark for mark in marks if mark not in known]
    if unknown:
        raise ValueError(f"not among the tokenizer's special tokens: {', '.join(unknown)}")
    state["model"]["vocab"] = {token: place for place, token in enumerate(vocabulary)}
    state["model"]["merges"] = [list(pair) for pair in kept]
    state["added_tokens"] = [
        {**known[mark], "id": len(vocabulary) + place} for place, mark in enumerate(marks)
    ]
    return Tokenizer.from_str(json.dumps(state))


def _pieces(whole: Tokenizer, texts: Iterable[str], marks: Sequence[str]) -> set[str]:
    """What is merged by itself: words in the symbols of their bytes. Marks are none."""
    between = re.compile("|".join(map(re.escape, marks)) or "$^")
    found: set[str] = set()
    for text in texts:
        for part in between.split(text):
            normal = part if whole.normalizer is None else whole.normalizer.normalize_str(part)
            found.update(piece for piece, _ in whole.pre_tokenizer.pre_tokenize_str(normal))
    return found


def _needed(merges: Sequence[Pair], pieces: Iterable[str]) -> list[Pair]:
    """The merges that are made in any of the pieces, in their order."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    used: set[int] = set()
    for piece in pieces:
        symbols = list(piece)
        while True:
            pairs = [(ranks.get(pair), at) for at, pair in enumerate(pairwise(symbols))]
            possible = [(rank, at) for rank, at in pairs if rank is not None]
            if not possible:
                break
            rank, at = min(possible)
            used.add(rank)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return [merges[rank] for rank in sorted(used)]
