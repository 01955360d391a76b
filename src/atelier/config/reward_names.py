"""What is said of a reward that is not one of the schema's."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from atelier.config.sections.rewards import RewardsConfig

SLOTS_PAGE = "docs/reward-slots.md"
OWN_PAGE = "docs/extending.md"
# What names of rewards that are not built in begin with, without other than letters and digits.
_SLOTS = ("imagereward", "hps", "aesthetic", "laion", "deqa", "editreward", "mask2former")
# Names that published mixtures have for rewards that are called otherwise here.
PUBLISHED = {
    "clip_sim": "clip_similarity",
    "gen_eval": "geneval",
    "ocr_vllm": "vlm_ocr",
    "pickscore": "pick_score",
    "unifiedreward": "unified_reward",
    "unifiedreward_sglang": "unified_reward",
    "unifiedreward_think": "unified_reward_think",
}
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
    meant = {**PUBLISHED, **{one: one for one in known}}
    near = difflib.get_close_matches(name.lower(), meant, n=1, cutoff=_CLOSE)
    close = _OURS.get(plain) or next((meant[one] for one in near), None)
    if close:
        return f"; did you mean rewards.{close}?"
    return (
        f"; rewards holds {', '.join(known)}; custom is for your own ({OWN_PAGE}), and for "
        f"ImageReward, HPS, aesthetic and others with older packages ({SLOTS_PAGE})"
    )


def ours(name: str) -> str:
    """Our name of a reward that a published mixture names."""
    return PUBLISHED.get(name, name)


def unset_problem(name: str, known: Collection[str]) -> str:
    """What is wrong with a data set that names a reward which is not set.

    Args:
        known: names of the rewards that are set.
    """
    built_in = RewardsConfig.built_in()
    if name not in built_in:
        return f"names a reward that there is not{reward_hint(name, sorted({*built_in, *known}))}"
    there = ", ".join(known) or "none"
    return (
        f"is rewarded by it, and it is not set; set it, or leave it out of the data set "
        f"(set: {there})"
    )
