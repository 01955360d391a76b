"""<run>/mlflow.json: what was sent to which store, so that nothing is sent twice."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atelier.errors import DataError
from atelier.tracking.mlflow_store import shown_uri
from atelier.tracking.run_directory import RunDirectory, read_json_object, write_json

_EMPTY: dict[str, Any] = {
    **{"sent": [], "series": {}, "children": {}, "models": {}},
    "identities": {},
}
_MEND = "delete it, and the run is sent to MLflow once more, as a new one"


class Memory:
    """What was sent of one configuration of a run and of what it is trained on; empty where one of
    these, or the store, is another.

    Attributes of the file: `run_id`, `experiment_id`, `status` in MLflow; `sent`, names of what is
    sent once; `series`, the last step sent by MLflow run; `children`, MLflow runs of stages;
    `models`, logged models by export; `traces`, up to where a file of questions is sent;
    `identities`, by stage, what the MLflow run is of.

    Args:
        identities: by stage, of those that have begun, up to the training.

    Raises:
        DataError: the file is damaged.
    """

    def __init__(
        self, run: RunDirectory, digest: str, uri: str, identities: Mapping[str, str]
    ) -> None:
        self._file = run.root / "mlflow.json"
        fresh = {"digest": digest, "uri": shown_uri(uri)}
        found = _read(self._file) if self._file.exists() else {}
        self.values: dict[str, Any] = copy.deepcopy(_EMPTY)
        is_same = fresh.items() <= found.items() and agree(found.get("identities", {}), identities)
        self.values |= found if is_same else fresh

    def save(self) -> None:
        write_json(self._file, self.values)

    def is_sent(self, name: str) -> bool:
        return name in self.values["sent"]

    def note_sent(self, name: str) -> None:
        self.values["sent"].append(name)
        self.save()

    def note(self, **values: Any) -> None:
        self.values |= values
        self.save()

    def note_in(self, table: str, key: str, value: Any) -> None:
        self.values[table][key] = value
        self.save()


def agree(known: Mapping[str, str], found: Mapping[str, str]) -> bool:
    """Whether what is known of both, stage by stage, is the same."""
    return all(known[stage] == found[stage] for stage in known.keys() & found.keys())


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json_object(file)
    except DataError as error:
        raise DataError(f"{error}; {_MEND}") from error
    for name, empty in _EMPTY.items():
        if not isinstance(found.get(name, empty), type(empty)):
            kind = type(found[name]).__name__
            raise DataError(f"{file}: {name}: not a {type(empty).__name__} but a {kind}; {_MEND}")
    return found
