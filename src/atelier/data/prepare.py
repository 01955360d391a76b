"""From the section `data` of a run's configuration to its train and held-out prompt tables."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from atelier.config.prompt_files import named_files
from atelier.config.sft_rules import picture_files
from atelier.data.captioned import CaptionedConfig, captioned_table
from atelier.data.difficulty import Curriculum, with_curriculum
from atelier.data.prompts import PromptSet, write_prompts
from atelier.data.readers.deepgen import read_mixture
from atelier.data.rows import whole_pairs
from atelier.data.scene_tables import ScenesConfig, scene_table, scene_tables
from atelier.data.splits import FilesConfig, Splits, beside_scenes, read_splits


class DataConfig(FilesConfig, ScenesConfig, CaptionedConfig, Protocol):
    """What `prepare` needs of the configuration (atelier.config.schema.DataConfig)."""

    @property
    def curriculum(self) -> Curriculum: ...


def prepare(config: DataConfig, out_dir: Path) -> dict[str, Any]:
    """Write `train.parquet`, `heldout.parquet` and `summary.json`, and `sft.parquet` where
    captioned pictures are asked for (captioned.py); return the summary.

    Scenes are generated, exactly as many as asked for; with a `heldout_path`, those that do not
    stand in that file. Files are read and cut to at most as many,
    a pair never in two; the rest is counted (`left_out`). Without a held-out file (`heldout_path`,
    or one in the folder `path`) about 15 % of the rows, by a hash of seed and content, are held
    out. Training rows that stand among the held-out ones too are dropped and counted. The tables
    are a pure function of configuration and file contents.

    Everything is read and checked before anything is written.

    Raises:
        DataError: as `tables`.
    """
    splits, bins = tables(config)
    pictures = captioned_table(config)
    summary = {
        "source": config.source,
        "path": config.path,
        "heldout_path": config.heldout_path,
        "seed": config.seed,
        "train": _described(splits.train),
        "heldout": _described(splits.heldout),
        "dropped_because_held_out": splits.dropped,
        "left_out": dict(splits.left_out),
        "mixture": _mixture(config),
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
    if config.source == "scenes" and config.heldout_path is not None:
        splits = beside_scenes(scene_table(config, "train"), config)
    elif config.source == "scenes":
        splits = Splits(*scene_tables(config), dropped=0, left_out={"train": 0, "heldout": 0})
    else:
        splits = read_splits(config)
    train, bins = with_curriculum(splits.train, config.curriculum)
    return replace(splits, train=train), bins


def input_files(config: DataConfig, root: Path) -> list[Path]:
    """Every file that `prepare` reads: those named or in a folder, and those of a mixture. Not the
    pictures that they name: there may be hundreds of thousands.

    Args:
        root: what the configuration's paths are relative to.

    Raises:
        DataError: a mixture cannot be read.
    """
    named = [(part, root / file) for part, file in named_files(config)]
    files = [file for _, file in named]
    if config.source == "deepgen":
        mixtures = [file for part, file in named if part != "scores"]
        files += [dataset.path for file in mixtures for dataset in read_mixture(file).datasets]
    return [*files, *(root / file for _, file in picture_files(config.sft))]


def _mixture(config: DataConfig) -> dict[str, Any] | None:
    """How the datasets of a DeepGen YAML are mixed, for `samplers.mixed_indices`."""
    if config.source != "deepgen" or config.path is None:
        return None
    mixture = read_mixture(Path(config.path))
    return {
        "sampling_mode": mixture.sampling_mode,
        "datasets": [
            {
                "dataset_id": dataset.dataset_id,
                "name": dataset.name,
                "sample_weight": dataset.sample_weight,
                "rewards": dataset.rewards,
            }
            for dataset in mixture.datasets
        ],
    }


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
