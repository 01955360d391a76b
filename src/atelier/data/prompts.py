"""Prompts and the tables that hold them (Parquet, one row a prompt, metadata as a JSON column)."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

from atelier.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("prompt_id", "dataset_id", "text", "metadata")


@dataclass(frozen=True)
class Prompt:
    """One prompt. (dataset_id, prompt_id) is its identity, and that of its group of samples.

    `metadata` is what rewards and checks need, JSON values only: {"target": "KEM"}, {"scene": ...},
    GenEval's include and exclude, test points, the reward mix of its dataset.
    """

    prompt_id: int
    dataset_id: int
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PromptSet(Sequence[Prompt]):
    """Prompts in a fixed order, under a name ("train", "heldout")."""

    prompts: tuple[Prompt, ...]
    name: str

    @property
    def digest(self) -> str:
        """sha256 of the content; the name does not count."""
        return content_digest(self.prompts)

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Prompt, ...]: ...
    def __getitem__(self, index: int | slice) -> Prompt | tuple[Prompt, ...]:
        return self.prompts[index]


class TablesConfig(Protocol):
    """What of the section `data` says how many prompts there are to be, and which."""

    @property
    def train_prompts(self) -> int: ...
    @property
    def heldout_prompts(self) -> int: ...
    @property
    def seed(self) -> int: ...


def content_digest(prompts: Sequence[Prompt]) -> str:
    """sha256 (hex) of ids, texts and metadata in their order; metadata key order does not count."""
    digest = hashlib.sha256()
    for prompt in prompts:
        row = [prompt.prompt_id, prompt.dataset_id, prompt.text, prompt.metadata]
        digest.update(json.dumps(row, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write a table: aside, fsynced, then renamed, so that a reader never meets half a file.

    Raises:
        DataError: metadata that JSON cannot hold; or a text, an id or their uniqueness is wrong.
    """
    import pandas

    _validate(path, prompts)
    rows = [(p.prompt_id, p.dataset_id, p.text, _to_json(path, p)) for p in prompts]
    frame = pandas.DataFrame(rows, columns=list(COLUMNS)).astype(
        {"prompt_id": "int64", "dataset_id": "int64"}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        frame.to_parquet(aside, index=False)
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def read_prompts(path: Path) -> PromptSet:
    """Read a table that `write_prompts` wrote; its name is the file's stem.

    Raises:
        DataError: missing, not Parquet, other columns, no rows, or a row that is no prompt.
    """
    frame = _read_parquet(path)
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise DataError(
            f"{path}: not a prompt table: no column {', '.join(missing)} "
            f"(it has {', '.join(map(str, frame.columns)) or 'none'}); run `atelier stage prepare`"
        )
    prompts = tuple(
        _from_row(path, index, row)
        for index, row in enumerate(frame[list(COLUMNS)].itertuples(index=False))
    )
    _validate(path, prompts)
    return PromptSet(prompts, path.stem)


def _read_parquet(path: Path) -> "DataFrame":
    import pandas
    import pyarrow

    if not path.is_file():
        what = "is a folder, not a prompt table" if path.is_dir() else "no such prompt table"
        raise DataError(f"{path}: {what}; run `atelier stage prepare` to make one")
    try:
        return pandas.read_parquet(path)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one ({error})") from error


def _from_row(path: Path, index: int, row: Any) -> Prompt:
    try:
        metadata = json.loads(row.metadata)
        prompt_id, dataset_id = int(row.prompt_id), int(row.dataset_id)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(f"{path}: row {index}: not a prompt ({error})") from error
    if not isinstance(metadata, dict) or not isinstance(row.text, str):
        raise DataError(f"{path}: row {index}: text must be a string and metadata a JSON object")
    return Prompt(prompt_id, dataset_id, row.text, metadata)


def _validate(path: Path, prompts: Sequence[Prompt]) -> None:
    if not prompts:
        raise DataError(f"{path}: a prompt table needs at least one prompt")
    seen: set[tuple[int, int]] = set()
    for index, prompt in enumerate(prompts):
        identity = (prompt.dataset_id, prompt.prompt_id)
        if identity in seen:
            raise DataError(f"{path}: row {index}: (dataset_id, prompt_id) {identity} stands twice")
        if not prompt.text.strip():
            raise DataError(f"{path}: row {index}: the text is empty")
        seen.add(identity)


def _to_json(path: Path, prompt: Prompt) -> str:
    try:
        return json.dumps(prompt.metadata, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: metadata of prompt {prompt.prompt_id}: {error}") from error
