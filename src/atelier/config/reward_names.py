"""What is said of a reward that is not one of the schema's."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

SLOTS_PAGE = "docs/reward-slots.md"
OWN_PAGE = "docs/extending.md"
# What names of rewards that are not built in begin with, without other than letters and digits.
_SLOTS = ("imagereward", "hps", "aesthetic", "laion", "deqa", "editreward", "mask2former")
# Names that other systems have for ours, written likewise.
_OURS = {
    "clip": "clip_similarity",
    "clipscore": "clip_similarity",
    "clipsim": "clip_similarity",
    "jpeg": "jpeg_compressibility",
    "paddleocr": "ocr",
    "textocr": "ocr",
    "vqascore": "yes_no",
    "internvl": "yes_no",
    "editquality": "complex_edit",
}
_CLOSE = 0.75  # as alike as a slip of the hand leaves them


def reward_hint(name: str, known: Sequence[str]) -> str:
    """`; ...`: which of `known` was probably meant, and which there are.

    Args:
        name: the key below `rewards`.
        known: the keys of the section, sorted.
    """
    plain = "".join(one for one in name.lower() if one.isalnum())
    if plain.startswith(_SLOTS):
        return f"; it is not built in, but a reward below rewards.custom: {SLOTS_PAGE} says how"
    close = _OURS.get(plain) or next(
        iter(difflib.get_close_matches(name.lower(), known, n=1, cutoff=_CLOSE)), None
    )
    if close:
        return f"; did you mean rewards.{close}?"
    return (
        f"; rewards holds {', '.join(known)}; custom is for your own ({OWN_PAGE}), and for "
        f"ImageReward, HPS, aesthetic and others with older packages ({SLOTS_PAGE})"
    )
