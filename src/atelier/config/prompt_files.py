"""Which files a run's prompts are in, and which say how easy they are: those it names, or those of
a folder it names.

Folders are laid out as Flow-GRPO and MM-GRPO have theirs: a training and a held-out file of known
names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from atelier.config.paths import from_root, is_directory, is_file, tracking_file

PromptFormat = Literal[
    "ocr_text",
    "plain",
    "geneval",
    "unigenbench",
    "deepgen",
    "deepgen_eval",
    "paircomp",
    "focusdiff",
    "janus_edit",
    "janus_sft",
    "janus_sft_edit",
    "mmmg",
    "complex_edit",
]
PromptSource = Literal["scenes", "mixture", PromptFormat]
PAIR_SOURCES = ("paircomp", "focusdiff")
EDIT_SOURCES = ("janus_edit", "janus_sft_edit", "complex_edit")
# Formats that carry no text to be read in the image.
WITHOUT_TARGET = (
    *("plain", "geneval", "unigenbench", "deepgen_eval", "janus_sft", "mmmg"),
    *PAIR_SOURCES,
    *EDIT_SOURCES,
)
_SHARD = re.compile(r"(?P<name>.+)-\d{5}-of-(?P<count>\d{5})\.parquet")
Part = Literal["train", "heldout", "unpaired", "scores"]

# The key of the section `data` that names each file.
KEYS: dict[Part, str] = {
    "train": "path",
    "heldout": "heldout_path",
    "unpaired": "unpaired_path",
    "scores": "curriculum.scores",
}

# data.source: the training and the held-out file of a folder. Other formats come as single files.
FOLDER_FILES: dict[str, dict[Part, str]] = {
    "ocr_text": {"train": "train.txt", "heldout": "test.txt"},
    "plain": {"train": "train.txt", "heldout": "test.txt"},
    "geneval": {"train": "train_metadata.jsonl", "heldout": "test_metadata.jsonl"},
}


class NamedScores(Protocol):
    """What the section `data.curriculum` says of files."""

    @property
    def scores(self) -> str | None: ...


class NamedPaths(Protocol):
    """What the section `data` says of files."""

    @property
    def source(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def heldout_source(self) -> str | None: ...
    @property
    def heldout_path(self) -> str | None: ...
    @property
    def unpaired_path(self) -> str | None: ...
    @property
    def curriculum(self) -> NamedScores: ...
    def parts(self) -> Mapping[str, NamedPaths]:
        """The data sets of a mixture by name, each as data by itself."""
        ...


@dataclass(frozen=True)
class NamedFile:
    """A file that the section `data` names.

    Attributes:
        part: what it is read for.
        path: relative to the repository unless absolute; it need not be there.
        key: the dotted key that names it.
        source: the format of its prompts.
    """

    part: Part
    path: Path
    key: str
    source: str


def prompt_files(data: NamedPaths) -> dict[Part, Path]:
    """The file of each part, relative to the repository unless absolute; it need not be there.

    A folder stands for its file of the split. Where no held-out path is named, the held-out file
    of the folder `path` is taken, if it is there or DVC can bring it; without one there is no entry
    for it, and the training file is split.
    """
    files: dict[Part, Path] = {}
    if data.path is not None:
        files["train"] = _file_of(data.source, data.path, "train")
    if data.heldout_path is not None:
        source = data.heldout_source or data.source
        files["heldout"] = _file_of(source, data.heldout_path, "heldout")
    elif data.path is not None:
        beside = _file_of(data.source, data.path, "heldout")
        if beside != Path(data.path) and (_is_file(beside) or _is_file(Path(f"{beside}.dvc"))):
            files["heldout"] = beside
    if data.unpaired_path is not None:
        files["unpaired"] = Path(data.unpaired_path)
    if data.curriculum.scores is not None:
        files["scores"] = Path(data.curriculum.scores)
    return files


def named_files(data: NamedPaths, section: str = "data") -> list[NamedFile]:
    """Every file of `prompt_files`, all shards of one among them, and those of the data sets of a
    mixture."""
    heldout_source = data.heldout_source or data.source
    found = [
        NamedFile(
            part,
            one,
            f"{section}.{KEYS[part]}",
            heldout_source if part == "heldout" else data.source,
        )
        for part, file in prompt_files(data).items()
        for one in shards_of(file)
    ]
    for name, own in data.parts().items():
        found += named_files(own, f"{section}.datasets.{name}")
    return found


def shards_of(path: Path) -> list[Path]:
    """The files that are one with it, as Hugging Face names them: NAME-00000-of-00002.parquet."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    name, count = match["name"], int(match["count"])
    return [path.with_name(f"{name}-{one:05d}-of-{count:05d}.parquet") for one in range(count)]


def can_be_had(path: Path) -> bool:
    """Whether the file is there, or tracked by DVC, so that the run fetches it."""
    return _is_file(path) or tracking_file(from_root(path)) is not None


def _is_file(path: Path) -> bool:
    return is_file(from_root(path))


def _file_of(source: str, path: str, split: Part) -> Path:
    if source in FOLDER_FILES and is_directory(from_root(path)):
        return Path(path, FOLDER_FILES[source][split])
    return Path(path)
