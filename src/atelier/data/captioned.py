"""The table of captioned pictures that are learned from beside the rewards (data.sft)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from atelier.config.paths import from_root
from atelier.config.prompt_files import shards_of
from atelier.config.sections.sft import PictureFile, PicturesConfig
from atelier.data.keys import key
from atelier.data.prompts import Prompt, PromptSet
from atelier.data.readers import captioned
from atelier.data.readers.picture_sets import read_sets
from atelier.data.samplers import sampling_shares, weighted_indices
from atelier.data.scene_tables import Task, TooFewScenes, Wording, scene_table
from atelier.data.scenes import Kind
from atelier.errors import DataError, PlanError

TABLE = "sft"


class CaptionedConfig(Protocol):
    """What of the section `data` says which pictures (atelier.config.sections.data)."""

    @property
    def sft(self) -> PicturesConfig: ...
    @property
    def scene_kind(self) -> Kind: ...
    @property
    def seed(self) -> int: ...


def captioned_table(data: CaptionedConfig) -> PromptSet | None:
    """Every picture with its caption, as a prompt with ground truth; None where none are asked for.

    dataset_id is the place of a file among `named_sets`; metadata "dataset" is its name, and
    "weight" how often it is drawn.

    Raises:
        DataError: a file is missing or malformed, or there are not so many scenes.
    """
    if data.sft.source is None:
        return None
    if data.sft.source == "scenes":
        return _scenes(data)
    prompts: list[Prompt] = []
    for dataset, one in enumerate(named_sets(data.sft)):
        added = {"dataset": one.name, "weight": one.weight}
        prompts += [
            Prompt(row.prompt_id, dataset, row.text, {**row.metadata, **added})
            for row in one.read()
        ]
    return PromptSet(tuple(prompts), TABLE)


@dataclass(frozen=True)
class NamedSet:
    """One file of captioned pictures.

    Attributes:
        paths: its shards.
    """

    name: str
    weight: float
    paths: Sequence[Path]
    read: Callable[[], list[Prompt]]
    count: Callable[[], int]


def named_sets(pictures: PicturesConfig) -> list[NamedSet]:
    """The files of data.sft.files by name, of those that list others the ones that they list.

    Raises:
        DataError: a list is not one, or names what is not there.
    """
    return [one for name, file in pictures.named_files.items() for one in _sets_of(name, file)]


def _sets_of(name: str, file: PictureFile) -> Iterator[NamedSet]:
    path = Path(file.path)
    if not file.lists_files:
        read, count = partial(captioned.read, path), partial(captioned.count, from_root(path))
        yield NamedSet(name, file.weight, shards_of(path), read, count)
        return
    for one in read_sets(path, file.data_root):
        own, weight = f"{name}/{one.name}", file.weight * one.weight
        yield NamedSet(own, weight, [one.path], one.read, one.count)


def picture_indices(
    table: PromptSet, pictures: PicturesConfig, update: int, count: int, seed: int
) -> list[int]:
    """Places in the table of an update's pictures (updates count from 0), all different.

    Raises:
        PlanError: there are fewer pictures than are to be drawn.
        DataError: the table does not say how often its files are drawn.
    """
    require_enough(len(table), pictures, count)
    ids = [one.dataset_id for one in table]
    shares = sampling_shares(ids, _weights(table, pictures), pictures.sampling_mode)
    # Not by the run's seed itself, as prompts are: tables of one size would be permuted alike.
    return weighted_indices(shares, update, count, key(TABLE, seed))


def _weights(table: PromptSet, pictures: PicturesConfig) -> dict[int, float]:
    """How often each data set is drawn; of scenes there is one."""
    if pictures.source == "scenes":
        return {0: 1.0}
    try:
        return {one.dataset_id: one.metadata["weight"] for one in table}
    except KeyError as error:
        raise DataError(
            f"data/{table.name}.parquet: an earlier version prepared it, which does not say there "
            "how often each of data.sft.files is drawn; move the run's data aside, and resume"
        ) from error


def require_enough(there: int, pictures: PicturesConfig, count: int) -> None:
    """Check that an update can have `count` different pictures.

    Raises:
        PlanError: there are fewer.
    """
    if count > there:
        where = f"data.sft.{pictures.source}"
        raise PlanError(
            f"train.sft.pictures_per_update {count} exceeds the {there} captioned pictures of "
            f"{where}: lower it, or have more pictures there"
        )


def count_pictures(pictures: PicturesConfig) -> int:
    """How many rows the files have, without reading the pictures.

    Raises:
        DataError: a file is missing, or no such file.
    """
    return sum(one.count() for one in named_sets(pictures))


@dataclass(frozen=True)
class _TrainingScenes:
    """As many scenes of the training split, to be drawn (scene_tables.ScenesConfig)."""

    train_prompts: int
    scene_kind: Kind
    seed: int
    heldout_prompts: int = 0
    scene_pairs: float = 0.0
    scene_tiers: int = 1
    scene_task: Task = "draw"
    scene_wording: Wording = "plain"

    def levels_for(self, source: str) -> tuple[int, ...]:
        return ()


def _scenes(data: CaptionedConfig) -> PromptSet:
    asked = data.sft.scenes
    try:
        found = scene_table(_TrainingScenes(asked, data.scene_kind, data.seed), "train")
    except TooFewScenes as error:
        raise DataError(
            f"data.sft.scenes {asked}: data.scene_kind {data.scene_kind} holds {error.found} "
            "different training scenes; use fewer, or another kind"
        ) from error
    return PromptSet(found.prompts, TABLE)
