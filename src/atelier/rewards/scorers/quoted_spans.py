"""DeepGen-RL's newer rule for text in images, as pure functions of strings.

Every quoted text counts by its length, and each is looked for among what the reader read: in single
lines, in neighbours joined, and in all of it. Unlike the older rule (text.py) text around a target
is not free.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from atelier.config.sections.rewards import SpansConfig
from atelier.rewards.scorers.text import levenshtein

# Signs that readers take for one another. Capital letters are told apart.
_CONFUSED = str.maketrans("01ij5v", "olllsw")


def spans_similarity(
    targets: Sequence[str], lines: Sequence[str], config: SpansConfig
) -> float | None:
    """How much of the quoted texts can be read in the recognised lines, in [0, 1].

    The mean over the targets, by their length, of 1 - min(distance, length) / length, the distance
    being the least edit distance to any candidate.

    Returns:
        None where nothing of the targets is left to be looked for (`kept_signs`): no score exists.
    """
    wanted = [text for text in (comparable(one, config) for one in targets) if text]
    if not wanted:
        return None
    read = list(candidates([comparable(one, config) for one in lines], config.most_joined))
    found = sum(len(one) - min(_distance(one, read, config), len(one)) for one in wanted)
    return found / sum(map(len, wanted))


def comparable(text: str, config: SpansConfig) -> str:
    """The text without white space, and without the signs that do not count."""
    kept = "".join(one for one in "".join(text.split()) if _counts(one, config))
    return kept if config.case_sensitive else kept.lower()


def candidates(lines: Sequence[str], most_joined: int) -> Iterator[str]:
    """Every line, up to `most_joined` neighbours as one, and all lines as one."""
    for count in range(1, most_joined + 1):
        for start in range(len(lines) - count + 1):
            yield "".join(lines[start : start + count])
    if len(lines) > most_joined:
        yield "".join(lines)


def _counts(sign: str, config: SpansConfig) -> bool:
    if config.kept_signs == "all":
        return True
    if config.kept_signs == "ascii":
        return sign.isascii() and sign.isalnum()
    return unicodedata.category(sign)[0] in "LMN"


def _distance(target: str, read: Sequence[str], config: SpansConfig) -> int:
    """The least edit distance to what was read; the whole target where nothing was."""
    pairs = [(target, one) for one in read]
    if config.fold_confused:
        folded = target.translate(_CONFUSED)
        pairs += [(folded, one.translate(_CONFUSED)) for one in read]
    return min((levenshtein(*pair) for pair in pairs), default=len(target))
