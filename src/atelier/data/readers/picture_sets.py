"""Files that list files of captioned pictures: the data of DeepGen-RL's auxiliary loss.

MMEngine's Python (mmengine.py), or the same as YAML:

    datasets:
      - {data_path: posters.json, image_folder: pictures, sample_weight: 3.0}

Each names a JSON list of {image_path, txt}. Source: DeepGen-RL. Deviations: pictures are
shown as those of any other file, by their middle square, so `image_size` and `image_process` say
nothing; and a relative path is relative to the file that it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.config.paths import from_root, is_file
from atelier.config.sections.sft import HEAVIEST, LIGHTEST
from atelier.data.prompts import Prompt
from atelier.data.readers import mmengine
from atelier.data.readers.objects import checked
from atelier.data.readers.problems import Problems, json_list
from atelier.data.readers.yaml_nodes import compose, items, line_of, mapping, scalar
from atelier.legible import legible_value

KEYS = ("data_path", "image_folder", "sample_weight")
ROW_KEYS = ("image_path", "txt")
ROOT = "$DATA_ROOT"
_TEXTS = ("data_path", "image_folder")
_ON_SERVERS = ("ceph_folder", "ceph_config")


@dataclass(frozen=True)
class PictureSet:
    """A JSON list of {image_path, txt}.

    Attributes:
        folder: which its pictures' paths are relative to.
        weight: how often it is drawn, as data.sft.sampling_mode has it.
    """

    path: Path
    folder: Path
    weight: float

    @property
    def name(self) -> str:
        return self.path.stem

    def read(self) -> list[Prompt]:
        """As readers.captioned.read.

        Raises:
            DataError: not such a list; or rows that are wrong, all reported.
        """
        problems = Problems(self.path)
        prompts: list[Prompt] = []
        for number, value in enumerate(json_list(from_root(self.path), "pictures")):
            # Rows name pictures from the folder of their file: any name in that of the pictures.
            row = checked(self.folder / "_", problems, f"item {number}", value, ROW_KEYS)
            if row is not None:
                metadata = {"image": row.picture("image_path")}
                prompts.append(Prompt(len(prompts), 0, row.text("txt"), metadata))
        problems.raise_if_any()
        return prompts

    def count(self) -> int:
        """How many rows it has, sound or not. Raises DataError: not such a list."""
        return len(json_list(from_root(self.path), "pictures"))


def read_sets(path: Path, data_root: str | None) -> list[PictureSet]:
    """The sets that a file lists; what they name is not opened.

    Args:
        path: relative to the repository unless absolute, as are those of the sets.
        data_root: what $DATA_ROOT stands for.

    Raises:
        DataError: not such a file, or one of its sets cannot be known without running it, or is
            not there: all reported with line and key.
    """
    problems = Problems(path)
    entries = _of_python if path.suffix == ".py" else _of_yaml
    found = [
        _set(problems, where, values, path.parent, data_root)
        for where, values in entries(from_root(path), problems)
    ]
    problems.raise_if_any()
    return [one for one in found if one is not None]


def _of_python(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    for entry in mmengine.read_entries(path):
        for key in (*KEYS, *_ON_SERVERS):
            if isinstance(value := entry.get(key), mmengine.Unknown):
                what = f"{key}: `{value}` is known only when the file is run; write its value there"
                problems.add(f"line {value.line}", what)
        for key in _ON_SERVERS:
            if entry.get(key) is not None:
                problems.add(f"line {entry.line}", f"{key}: pictures are read from files alone")
        yield f"line {entry.line}", {key: entry[key] for key in KEYS if key in entry}


def _of_yaml(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    top = mapping(problems, compose(path), "the file", ("datasets",))
    for index, node in enumerate(items(problems, top.get("datasets"), "datasets")):
        where = f"datasets[{index}]"
        entry = mapping(problems, node, where, KEYS)
        kinds = {key: str if key in _TEXTS else float for key in KEYS}
        values = {
            key: scalar(problems, value, f"{where}.{key}", kinds[key])
            for key, value in entry.items()
            if key in KEYS
        }
        yield line_of(node), values


def _set(
    problems: Problems, where: str, values: dict[str, Any], folder: Path, data_root: str | None
) -> PictureSet | None:
    texts: dict[str, Path] = {}
    for key in _TEXTS:
        value = values.get(key)
        if isinstance(value, str) and (found := _expanded(problems, where, key, value, data_root)):
            texts[key] = folder / found
        elif value is not None and not isinstance(value, str | mmengine.Unknown):
            problems.add(where, f"{key}: a text expected, not {legible_value(value)}")
    if "data_path" not in values:
        problems.add(where, "has no data_path")
    weight = values.get("sample_weight", 1.0)
    if not _is_weight(weight):
        problems.add(
            where,
            f"sample_weight {legible_value(weight)}: a number from {LIGHTEST:g} to {HEAVIEST:g}",
        )
    if "data_path" not in texts:
        return None
    path = texts["data_path"]
    if path.suffix != ".json":
        problems.add(
            where, f"data_path {path}: a JSON list of {{image_path, txt}}, *.json, is read"
        )
    elif not is_file(from_root(path)):
        problems.add(where, f"data_path: no such file {path}")
    return PictureSet(path, texts.get("image_folder", path.parent), weight)


def _is_weight(value: Any) -> bool:
    if isinstance(value, mmengine.Unknown):
        return True  # told
    return type(value) in (int, float) and LIGHTEST <= value <= HEAVIEST


def _expanded(
    problems: Problems, where: str, key: str, text: str, data_root: str | None
) -> str | None:
    """A path, with the folder in the place of $DATA_ROOT."""
    if text.startswith(ROOT) and data_root is None:
        problems.add(where, f"{key}: {ROOT}: name the folder, as data_root beside the file's path")
        return None
    found = text.replace(ROOT, str(data_root), 1) if text.startswith(ROOT) else text
    if "$" in found:
        problems.add(where, f"{key}: {found}: of variables, only {ROOT} at its beginning is read")
        return None
    return found
