"""Weights in several files of safetensors, and the index beside them that says which holds what."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from atelier.errors import ConfigError
from atelier.legible import legible, legible_value

WEIGHTS_INDEX = ".safetensors.index.json"  # ends an index's name


def places_in(index: Path) -> dict[str, Path]:
    """The file of every tensor.

    Raises:
        ConfigError: it is no index, names no tensor or one twice, or names what is no file of
            tensors beside it.
    """
    places = _weight_map(index)
    return {name: _file_of(index, name, place) for name, place in places.items()}


def weight_files(file: Path) -> list[Path]:
    """A file of weights, and where it is an index, the files that it names behind it.

    Raises:
        ConfigError: it is no index, or names what is not there.
    """
    if not file.name.endswith(WEIGHTS_INDEX):
        return [file]
    return [file, *sorted({*places_in(file).values()})]


def _file_of(index: Path, tensor: str, place: str) -> Path:
    where = f"{index}: weight_map: {legible_value(tensor)}"
    if place.endswith(WEIGHTS_INDEX):
        raise ConfigError(f"{where}: {legible(place)} is an index itself, and holds no tensors")
    is_name = place not in ("", ".", "..") and Path(place).name == place
    # os.path: False for a name that no file can have.
    if not is_name or not os.path.isfile(index.with_name(place)):
        raise ConfigError(f"{where}: there is no file {legible(place) or repr(place)} beside it")
    return index.with_name(place)


def _weight_map(index: Path) -> dict[str, str]:
    try:
        value: Any = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_without_twins)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{index}: cannot be read as JSON: {error}") from error
    places = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise ConfigError(f"{index}: weight_map: expected the file of every tensor")
    if not places:
        raise ConfigError(f"{index}: weight_map: names no tensor")
    return places


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that stands twice, Python's parser keeps the last without a word."""
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"{legible_value(key)} stands twice")
        made[key] = value
    return made
