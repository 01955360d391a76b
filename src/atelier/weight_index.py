"""Weights in several files of safetensors, and the index beside them that says which holds what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atelier.errors import ConfigError

WEIGHTS_INDEX = ".safetensors.index.json"  # ends an index's name


def places_in(index: Path) -> dict[str, Path]:
    """The file of every tensor.

    Raises:
        ConfigError: it is no index, or names what is no file beside it.
    """
    places = _weight_map(index)
    found = {name: index.with_name(Path(one).name) for name, one in places.items()}
    for name, file in found.items():
        if places[name] != file.name or not file.is_file():
            raise ConfigError(f"{index}: weight_map: there is no file {places[name]} beside it")
    return found


def weight_files(file: Path) -> list[Path]:
    """A file of weights, and where it is an index, the files that it names behind it.

    Raises:
        ConfigError: it is no index, or names what is not there.
    """
    if not file.name.endswith(WEIGHTS_INDEX):
        return [file]
    return [file, *sorted({*places_in(file).values()})]


def _weight_map(index: Path) -> dict[str, str]:
    try:
        value: Any = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{index}: cannot be read as JSON: {error}") from error
    places = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise ConfigError(f"{index}: weight_map: expected the file of every tensor")
    return places
