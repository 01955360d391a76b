"""What of prompt files is trained on, and what is held out: whole rows, never one of a pair.

A row is split by its content, so that more lines in a file move no other row: by the text, of a
pair by both texts, of an edit by the picture that is edited: its name or, where the metadata have
one ("picture_digest"), its digest.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from atelier.config.prompt_files import NamedPaths, prompt_files
from atelier.data.keys import key, uniform
from atelier.data.prompts import Prompt, PromptSet, TablesConfig
from atelier.data.readers import SOUND_ROWS, plain, read_prompts_file
from atelier.data.rows import rows_of
from atelier.data.scenes import HELDOUT_SHARE
from atelier.errors import DataError

logger = logging.getLogger(__name__)

MalformedRows = Literal["refuse", "leave_out"]


@dataclass(frozen=True)
class Row:
    """What stays together, and the content that decides where."""

    prompts: tuple[Prompt, ...]
    content: str

    def __len__(self) -> int:
        return len(self.prompts)


class FilesConfig(NamedPaths, TablesConfig, Protocol):
    """What of the section `data` says which files (atelier.config.sections.data)."""

    def levels_for(self, source: str) -> tuple[int, ...]: ...
    @property
    def malformed_rows(self) -> MalformedRows: ...


@dataclass(frozen=True)
class Splits:
    """Training and held-out prompts of files, and what of the files is not among them.

    Attributes:
        dropped: training prompts whose row, or a prompt of it, stands among the held-out ones too.
        left_out: prompts beyond `train_prompts` and `heldout_prompts`, of `train` and `heldout`.
        malformed: of rows that were left out because of it, what is wrong with each, its file and
            line named.
    """

    train: PromptSet
    heldout: PromptSet
    dropped: int
    left_out: Mapping[str, int]
    malformed: Sequence[str] = ()


def beside_scenes(scenes: PromptSet, config: FilesConfig) -> Splits:
    """Hold out the prompts of `heldout_path`, and train on scenes.

    Raises:
        DataError: the file is missing or malformed, or a split would be empty.
    """
    path = prompt_files(config)["heldout"]
    malformed: list[str] = []
    heldout = _heldout(config, path, malformed)
    rows = [Row(tuple(scenes[place] for place in places), "") for places in rows_of(scenes)]
    train = _without(rows, heldout)
    _require_some(path, train, heldout, f"every scene stands in {path} too")
    kept = _chosen(heldout, config.heldout_prompts, config.seed)
    return Splits(
        PromptSet(tuple(one for row in train for one in row.prompts), "train"),
        PromptSet(kept, "heldout"),
        dropped=len(scenes) - _count(train),
        left_out={"train": 0, "heldout": _count(heldout) - len(kept)},
        malformed=malformed,
    )


def read_splits(config: FilesConfig) -> Splits:
    """Split the prompts of files.

    Raises:
        DataError: a prompt file is missing or malformed, or a split would be empty.
    """
    if config.path is None:
        raise DataError(f"data.path: source {config.source!r} needs a prompt file")
    files = prompt_files(config)
    path = files["train"]
    malformed: list[str] = []
    rows = list(_rows(config, config.source, path, malformed))
    if "unpaired" in files:
        rows += _unpaired(files["unpaired"], sum(map(len, rows)))
    if "heldout" in files:
        heldout, candidates = _heldout(config, files["heldout"], malformed), rows
        hint = f"every prompt stands in {files['heldout']} too"
    else:
        heldout = [row for row in rows if _is_held_out(row, config.seed)]
        candidates = [row for row in rows if not _is_held_out(row, config.seed)]
        hint = f"{_too_few(rows)}; name a data.heldout_path"
    train = _without(candidates, heldout)
    _require_some(path, train, heldout, hint)
    chosen = _chosen(train, config.train_prompts, config.seed)
    kept = _chosen(heldout, config.heldout_prompts, config.seed)
    return Splits(
        PromptSet(chosen, "train"),
        PromptSet(kept, "heldout"),
        dropped=_count(candidates) - _count(train),
        left_out={
            "train": _count(train) - len(chosen),
            "heldout": _count(heldout) - len(kept),
        },
        malformed=malformed,
    )


def _heldout(config: FilesConfig, path: Path, malformed: list[str]) -> list[Row]:
    return list(_rows(config, config.heldout_source or config.source, path, malformed))


def _without(rows: Sequence[Row], heldout: Sequence[Row]) -> list[Row]:
    """The rows of which no prompt is held out."""
    held = {identity_of(one) for row in heldout for one in row.prompts}
    return [row for row in rows if held.isdisjoint(map(identity_of, row.prompts))]


def _require_some(path: Path, train: Sequence[Row], heldout: Sequence[Row], hint: str) -> None:
    for split, rest in (("training", train), ("held-out", heldout)):
        if not rest:
            raise DataError(f"{path}: no {split} prompt is left: {hint}")


def _too_few(rows: Sequence[Row]) -> str:
    """Why a file cannot be split: what stays together decides, not how many prompts there are."""
    prompts = f"its {_count(rows)} prompts"
    parts = len({row.content for row in rows})
    if parts == len(rows):
        pairs = f" ({parts} pairs or single prompts)" if parts < _count(rows) else ""
        return f"{prompts}{pairs} are too few to split"
    if "source_image" not in rows[0].prompts[0].metadata:
        return f"{prompts} have {parts} different texts, too few to split"
    pictures = "the same picture" if parts == 1 else f"{parts} pictures, too few to split"
    return (
        f"{prompts} change {pictures}: edits of one picture are all trained on or all held out, so "
        "that a held-out picture is new"
    )


def _rows(config: FilesConfig, source: str, path: Path, malformed: list[str]) -> Iterator[Row]:
    """The rows of a file; what is wrong with those that are left out is added to `malformed`."""
    if config.malformed_rows == "leave_out" and source in SOUND_ROWS:
        prompts, wrong = SOUND_ROWS[source](path)
        for one in wrong:
            logger.warning("left out (data.malformed_rows): %s", one)
        malformed += wrong
    else:
        prompts = read_prompts_file(source, path)
    if source == "complex_edit":
        prompts = _of_levels(prompts, config.levels_for(source), path)
    for places in rows_of(prompts):
        row = tuple(prompts[place] for place in places)
        yield Row(row, _content(row, path.parent))


def _of_levels(prompts: list[Prompt], levels: Sequence[int], path: Path) -> list[Prompt]:
    """Without the instructions of other levels."""
    found = [one for one in prompts if one.metadata["level"] in levels]
    if not found:
        named = ", ".join(map(str, levels))
        raise DataError(f"{path}: no instruction is of level {named} (data.edit_levels)")
    return found


def _unpaired(path: Path, first: int) -> list[Row]:
    """Plain prompts behind the pairs, numbered after them."""
    return [
        Row((Prompt(first + place, 0, one.text, one.metadata),), one.text)
        for place, one in enumerate(plain.read(path))
    ]


def _content(row: Sequence[Prompt], folder: Path) -> str:
    """The texts, or the digest or name of the picture that is edited, as the file has it."""
    if (digest := row[0].metadata.get("picture_digest")) is not None:
        return str(digest)
    source = row[0].metadata.get("source_image")
    if source is not None:
        return os.path.relpath(source, folder)
    return "\n".join(sorted(one.text for one in row))


def identity_of(one: Prompt) -> tuple[str, str | None]:
    """What may not be trained on and held out: the text, of an edit with the name of its picture,
    or the picture itself whatever is asked of it."""
    if (digest := one.metadata.get("picture_digest")) is not None:
        return "", digest
    return one.text, one.metadata.get("source_image")


def _is_held_out(row: Row, seed: int) -> bool:
    return uniform("prompt split", seed, row.content) < HELDOUT_SHARE


def _chosen(rows: Sequence[Row], most: int, seed: int) -> tuple[Prompt, ...]:
    """At most `most` prompts in whole rows, drawn by a hash of their content (not the head), in
    file order."""
    order = sorted(range(len(rows)), key=lambda i: (key("prompt choice", seed, rows[i].content), i))
    chosen, left = [], most
    for index in order:
        if len(rows[index]) <= left:
            chosen.append(index)
            left -= len(rows[index])
    return tuple(one for index in sorted(chosen) for one in rows[index].prompts)


def _count(rows: Sequence[Row]) -> int:
    return sum(map(len, rows))
