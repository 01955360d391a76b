"""Metrics of held-out evaluations in the words of people: label, order, and whether more is better.

A metric of a part of the prompts ("gold_arithmetic/count") is named after the whole one.
"""

from __future__ import annotations

LABELS = {
    "similarity": "OCR similarity (the proxy that is trained on)",
    "exact": "OCR exact match",
    "strict": "Right scenes (every fact confirmed by the exact checker)",
    "judge": "P(yes) of the judge (to whether the image shows its prompt)",
    "judge_arithmetic": "PairComp by the judge, arithmetic mean",
    "judge_geometric": "PairComp by the judge, geometric mean",
    "gold_arithmetic": "PairComp by gold, arithmetic mean (every fact of an image is right)",
    "gold_geometric": "PairComp by gold, geometric mean (every fact of a pair's images is right)",
    "judge_overall": "Complex-Edit by the judge (mean of the three marks, divided by 10)",
    "judge_quality": "Perceptual quality by the judge",
    "judge_edited": "Edits by the judge (geometric mean of following and preserving)",
    "judge_following": "Following by the judge",
    "judge_preserving": "Preserving by the judge",
    "gold_edited": "Edits by gold (geometric mean of following and preserving)",
    "gold_following": "Following by gold",
    "gold_preserving": "Preserving by gold",
    "judge_mmmg": "MMMG by the judge (readability times fidelity by Dice)",
    "judge_official": "MMMG by the judge, official fidelity",
    "judge_fidelity": "Knowledge fidelity by the judge",
    "judge_node_jaccard": "Elements by the judge (Jaccard)",
    "judge_edge_jaccard": "Dependencies by the judge (Jaccard)",
    "gold_mmmg": "MMMG by gold (readability times fidelity by Dice)",
    "gold_official": "MMMG by gold, official fidelity",
    "gold_fidelity": "Knowledge fidelity by gold",
    "gold_node_jaccard": "Elements by gold (Jaccard)",
    "gold_edge_jaccard": "Dependencies by gold (Jaccard)",
    "judge_unigenbench": "UniGenBench by the judge (share of all test points)",
    "judge_macro": "UniGenBench by the judge, mean of the primary dimensions",
    "gold_unigenbench": "UniGenBench by gold (share of all test points)",
    "gold_macro": "UniGenBench by gold, mean of the primary dimensions",
    "judged": "Images that the judge gave verdicts of",
    "readability": "Readability (1 up to 70 regions)",
    "regions": "Regions",
    "gold": "Gold: facts confirmed by the exact checker",
    "facts": "Confirmed facts",
    "dark_share": "Dark pixels",
    "edge_density": "Edges",
    "color_entropy": "Colour entropy (bits)",
}
# Counts and image statistics have no better or worse: they are there to notice a hacked reward.
# Nor has the share of images that were judged: it is the judge's.
_NEITHER = frozenset({"judged", "regions", "dark_share", "edge_density", "color_entropy"})
_ORDER = {name: index for index, name in enumerate(LABELS)}


def label_of(metric: str) -> str:
    """For a table or a sentence; what stands in parentheses may be left out."""
    whole, _, part = metric.partition("/")
    label = LABELS.get(whole, whole)
    return f"{label.split(' (')[0]}, {part.replace('_', ' ')}" if part else label


def is_part(metric: str) -> bool:
    """Whether it is of a part of the prompts, such as a category."""
    return "/" in metric


def direction_of(metric: str) -> int:
    """1 where more is better, 0 where neither more nor less is."""
    whole = metric.partition("/")[0]
    return int(whole in LABELS and whole not in _NEITHER)


def order_of(metric: str) -> tuple[int, str]:
    """Sorts metrics, what matters most first."""
    return _ORDER.get(metric.partition("/")[0], len(_ORDER)), metric
