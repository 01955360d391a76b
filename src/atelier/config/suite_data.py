"""What kind of prompts the data hold out, and which suites can use them."""

from __future__ import annotations

from collections.abc import Callable

from atelier.config.prompt_files import EDIT_SOURCES, PAIR_SOURCES
from atelier.config.sections.data import DataConfig
from atelier.config.sections.datasets import lacks_target

LICENSED = "complex_edit"  # the source whose licence is to be accepted


def heldout_format(data: DataConfig) -> str:
    """What the held-out prompts are read from."""
    return (data.heldout_source if data.heldout_path else None) or data.source


def has_pairs(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source come in pairs."""
    return data.scene_pairs > 0 if source == "scenes" else source in PAIR_SOURCES


def scene_pairs(share: float, prompts: int) -> int:
    """Pairs among so many prompts of scenes, `share` of which come in pairs (data.scene_pairs)."""
    return min(round(share * prompts / 2), prompts // 2)


def usable_heldout(data: DataConfig, suite: str) -> int:
    """Held-out prompts that a suite can use, at most; files are believed to have as many as are
    asked for, each of use."""
    most = data.most_heldout_prompts
    is_of_scenes = heldout_format(data) == "scenes"
    return 2 * scene_pairs(data.scene_pairs, most) if suite == "paircomp" and is_of_scenes else most


def has_graphs(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source have knowledge graphs."""
    return data.scene_task == "graph" if source == "scenes" else source == "mmmg"


def has_test_points(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source, or some of a mixture's, have test points."""
    if source == "mixture":
        return any(has_test_points(one, heldout_format(one)) for one in data.parts().values())
    if source == "scenes":
        return data.scene_task == "draw"
    return source in ("unigenbench", "deepgen_eval")


def has_levels(data: DataConfig, source: str) -> bool:
    """Whether instructions of a source are of levels."""
    return data.scene_task == "edit" if source == "scenes" else source == LICENSED


def has_edits(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source ask for changes of images."""
    return data.scene_task == "edit" if source == "scenes" else source in EDIT_SOURCES


def data_has_words(data: DataConfig) -> bool:
    """Whether held-out prompts may ask for a text; files are believed."""
    if (data.heldout_path and data.heldout_source) or data.source != "scenes":
        return True
    return data.scene_task == "draw" and data.scene_kind != "shapes"


def suite_for(data: DataConfig, heldout: str) -> str:
    """The suite that was made for such prompts."""
    if has_pairs(data, heldout):
        return "paircomp"
    if has_edits(data, heldout):
        return "complex_edit" if heldout == LICENSED else "editing"
    if has_graphs(data, heldout):
        return "mmmg"
    return heldout if heldout in ("scenes", "unigenbench") else "yes_no"


def _ocr_misfit(data: DataConfig, heldout: str) -> str | None:
    if not _lacks_target(data, heldout):
        return None
    return (
        f"ocr needs a text to look for, and the held-out prompts of {heldout} have none; use "
        f"{suite_for(data, heldout)}"
    )


def _scenes_misfit(data: DataConfig, heldout: str) -> str | None:
    if _asks_for_scenes(data, heldout):
        return None
    return (
        "scenes needs data.source scenes, and data.scene_task draw; prompts of any kind have "
        "yes_no, with a judge (evaluation.yes_no.judge)"
    )


def _yes_no_misfit(data: DataConfig, heldout: str) -> str | None:
    if not has_edits(data, heldout):
        return None
    return "yes_no is asked about prompts, and these are edits; use editing"


def _paircomp_misfit(data: DataConfig, heldout: str) -> str | None:
    if has_pairs(data, heldout):
        return None
    sources = " or ".join(PAIR_SOURCES)
    return f"paircomp needs held-out pairs: data.source {sources}, or data.scene_pairs above 0"


def _editing_misfit(data: DataConfig, heldout: str) -> str | None:
    if has_edits(data, heldout):
        return None
    sources = " or ".join(EDIT_SOURCES)
    return f"editing needs held-out edits: data.source {sources}, or data.scene_task edit"


def _complex_edit_misfit(data: DataConfig, heldout: str) -> str | None:
    if has_levels(data, heldout):
        return None
    return (
        f"complex_edit needs held-out edits of levels: data.source {LICENSED}, or "
        "data.scene_task edit"
    )


def _mmmg_misfit(data: DataConfig, heldout: str) -> str | None:
    if has_graphs(data, heldout):
        return None
    return "mmmg needs held-out knowledge graphs: data.source mmmg, or data.scene_task graph"


def _unigenbench_misfit(data: DataConfig, heldout: str) -> str | None:
    if has_test_points(data, heldout):
        return None
    return (
        "unigenbench needs held-out test points: data.source unigenbench or a mixture with it, "
        "or scenes with data.scene_task draw"
    )


# Why a suite cannot use the held-out prompts of a format; None where it can.
MISFITS: dict[str, Callable[[DataConfig, str], str | None]] = {
    "ocr": _ocr_misfit,
    "scenes": _scenes_misfit,
    "yes_no": _yes_no_misfit,
    "paircomp": _paircomp_misfit,
    "editing": _editing_misfit,
    "mmmg": _mmmg_misfit,
    "complex_edit": _complex_edit_misfit,
    "unigenbench": _unigenbench_misfit,
}


def _asks_for_scenes(data: DataConfig, heldout: str) -> bool:
    """Whether every held-out prompt of a source asks for a scene to be drawn."""
    if heldout == "mixture":
        return all(one.source == "scenes" for one in data.datasets.values())
    return heldout == "scenes" and data.scene_task == "draw"


def are_scenes(data: DataConfig, heldout: str) -> bool:
    """Whether every held-out prompt of a source is of a scene, so that the exact checker can score
    it."""
    if heldout == "mixture":
        return all(heldout_format(one) == "scenes" for one in data.parts().values())
    return heldout == "scenes"


def _lacks_target(data: DataConfig, heldout: str) -> bool:
    """Whether held-out prompts of a format surely have no text to look for."""
    if heldout == "mixture":
        return all(one.heldout_without_target() for one in data.datasets.values())
    return lacks_target(heldout, data.heldout_path or data.path)
