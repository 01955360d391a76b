"""From the section `data` of a run's configuration to its train and held-out prompt tables."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from atelier.config.prompt_files import named_files
from atelier.config.sections.datasets import SamplingMode
from atelier.config.sft_rules import picture_files
from atelier.data import mixtures
from atelier.data.captioned import CaptionedConfig, captioned_table, named_sets
from atelier.data.datasets import Dataset, Mixture
from atelier.data.difficulty import Curriculum, with_curriculum
from atelier.data.prompts import PromptSet, write_prompts
from atelier.data.readers.deepgen import read_mixture
from atelier.data.readers.deepgen_eval import read_datasets
from atelier.data.rows import whole_pairs
from atelier.data.scene_tables import ScenesConfig, scene_table, scene_tables
from atelier.data.splits import FilesConfig, Splits, beside_scenes, read_splits
from atelier.data.whole_pictures import require_whole
from atelier.errors import DataError


class MixedDataset(Protocol):
    """What a mixture says of one of its data sets (atelier.config.sections.datasets)."""

    @property
    def sample_weight(self) -> float: ...
    @property
    def rewards(self) -> Mapping[str, float]: ...


class DataConfig(FilesConfig, ScenesConfig, CaptionedConfig, Protocol):
    """What `prepare` needs of the configuration (atelier.config.sections.data)."""

    @property
    def curriculum(self) -> Curriculum: ...
    @property
    def sampling_mode(self) -> SamplingMode: ...
    @property
    def datasets(self) -> Mapping[str, MixedDataset]: ...
    def parts(self) -> Mapping[str, "DataConfig"]: ...


def prepare(config: DataConfig, out_dir: Path) -> dict[str, Any]:
    """Write `train.parquet`, `heldout.parquet` and `summary.json`, and `sft.parquet` where
    captioned pictures are asked for (captioned.py); return the summary.

    Scenes are generated, exactly as many as asked for; with a `heldout_path`, those that do not
    stand in that file. Files are read and cut to at most as many,
    a pair never in two; the rest is counted (`left_out`). Without a held-out file (`heldout_path`,
    or one in the folder `path`) about 15 % of the rows, by a hash of seed and content, are held
    out. Training rows that stand among the held-out ones too are dropped and counted. The tables
    are a pure function of configuration and file contents.

    Everything is read and checked before anything is written, and every picture decoded once.

    Raises:
        DataError: as `tables`, or a picture is damaged.
    """
    splits, bins = tables(config)
    mixture = mixture_of(config)
    pictures = captioned_table(config)
    require_whole([*splits.train, *splits.heldout, *(pictures or ())])
    summary = {
        "source": config.source,
        "path": config.path,
        "heldout_path": config.heldout_path,
        "seed": config.seed,
        "train": _described(splits.train),
        "heldout": _described(splits.heldout),
        "dropped_because_held_out": splits.dropped,
        "left_out": dict(splits.left_out),
        "malformed": {"left_out": len(splits.malformed), "rows": list(splits.malformed)},
        "mixture": mixture and mixtures.described(mixture, splits),
        "curriculum": bins,
        "sft": None if pictures is None else _described(pictures),
    }
    for prompt_set in (splits.train, splits.heldout, *([] if pictures is None else [pictures])):
        write_prompts(out_dir / f"{prompt_set.name}.parquet", prompt_set)
    _write_json(out_dir / "summary.json", summary)
    return summary


def tables(config: DataConfig) -> tuple[Splits, list[dict[str, Any]] | None]:
    """What `prepare` writes, and the bins of the curriculum, if there is one (difficulty.py).

    Raises:
        DataError: a file is missing or malformed, a split would be empty, there are not as many
            scenes, or cells of the curriculum were not measured.
    """
    splits = _splits(config)
    if (mixture := mixture_of(config)) is not None:
        splits = mixtures.mixed(splits, mixture)
    train, bins = with_curriculum(splits.train, config.curriculum)
    return replace(splits, train=train), bins


def mixture_of(config: DataConfig) -> Mixture | None:
    """Which data sets are mixed, and how; None where there is one set of prompts.

    Raises:
        DataError: the mixture's file cannot be read.
    """
    if config.source == "deepgen" and config.path is not None:
        return read_mixture(Path(config.path))
    if config.source != "mixture":
        return None
    # By name: the order in which recipes and overrides name them is no part of a run's identity.
    named = enumerate(sorted(config.datasets.items()))
    own = [Dataset(at, name, one.sample_weight, one.rewards) for at, (name, one) in named]
    return Mixture(config.sampling_mode, own)


def _splits(config: DataConfig) -> Splits:
    if config.source == "mixture":
        mixture, parts = mixture_of(config), config.parts()
        assert mixture is not None
        return mixtures.joined(
            [(one, _part(one.name, parts[one.name])) for one in mixture.datasets]
        )
    if config.source != "scenes":
        return read_splits(config)
    if config.heldout_path is not None:
        return beside_scenes(scene_table(config, "train"), config)
    return Splits(*scene_tables(config), dropped=0, left_out={"train": 0, "heldout": 0})


def _part(name: str, config: DataConfig) -> Splits:
    """A data set of a mixture, split by itself."""
    try:
        return _splits(config)
    except DataError as error:
        raise DataError(f"data.datasets.{name}: {error}") from error


def input_files(config: DataConfig, root: Path) -> list[Path]:
    """Every file that `prepare` reads: those named or in a folder, and those of a mixture. Not the
    pictures that they name: there may be hundreds of thousands.

    Args:
        root: what the configuration's paths are relative to.

    Raises:
        DataError: a mixture cannot be read.
    """
    files: list[Path] = []
    for one in named_files(config):
        files.append(root / one.path)
        if one.part != "scores":
            files += _named_in(root / one.path, one.source)
    files += [root / file for _, file in picture_files(config.sft)]
    listed = [one for named in named_sets(config.sft) for one in named.paths]
    return list(dict.fromkeys([*files, *(root / one for one in listed)]))


def _named_in(path: Path, source: str) -> list[Path]:
    """The prompt files that a prompt file names."""
    if source == "deepgen":
        return [one.path for one in read_mixture(path).datasets if one.path is not None]
    if source == "deepgen_eval":
        return [one.path for one in read_datasets(path)]
    return []


def _described(prompts: PromptSet) -> dict[str, Any]:
    return {
        "prompts": len(prompts),
        "pairs": len(whole_pairs(prompts)),
        "different_texts": len({one.text for one in prompts}),
        "datasets": len({one.dataset_id for one in prompts}),
        "digest": prompts.digest,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(path)
