"""From the section `data` of a run's configuration to its train and held-out prompt tables."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from atelier.config.prompt_files import prompt_files
from atelier.data.keys import key, uniform
from atelier.data.prompts import Prompt, PromptSet, write_prompts
from atelier.data.readers import read_prompts_file
from atelier.data.readers.deepgen import read_mixture
from atelier.data.scenes import HELDOUT_SHARE, Kind, Split, prompt, sample_scene, to_dict
from atelier.errors import DataError

FRUITLESS_DRAWS = 500  # so many scenes in a row without a new prompt: there are no more


class DataConfig(Protocol):
    """What `prepare` needs of the configuration (atelier.config.schema.DataConfig)."""

    @property
    def source(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def heldout_path(self) -> str | None: ...
    @property
    def scene_kind(self) -> Kind: ...
    @property
    def train_prompts(self) -> int: ...
    @property
    def heldout_prompts(self) -> int: ...
    @property
    def seed(self) -> int: ...


def prepare(config: DataConfig, out_dir: Path) -> dict[str, Any]:
    """Write `train.parquet`, `heldout.parquet` and `summary.json`; return the summary.

    Scenes are generated, exactly as many as asked for. Files are read and cut to at most as many:
    without a held-out file (`heldout_path`, or one in the folder `path`) about 15 % of the prompts,
    by a hash of seed and text, are held out; with one, training prompts that stand in it too are
    dropped and counted. The tables are a pure function of configuration and file contents.

    Everything is read and checked before anything is written.

    Raises:
        DataError: a prompt file is missing or malformed, or a split would be empty.
    """
    if config.source == "scenes":
        train, heldout = _scenes(config, "train"), _scenes(config, "heldout")
        dropped = 0
    else:
        train, heldout, dropped = read_splits(config)
    summary = {
        "source": config.source,
        "path": config.path,
        "heldout_path": config.heldout_path,
        "seed": config.seed,
        "train": _described(train),
        "heldout": _described(heldout),
        "dropped_because_held_out": dropped,
        "mixture": _mixture(config),
    }
    for prompt_set in (train, heldout):
        write_prompts(out_dir / f"{prompt_set.name}.parquet", prompt_set)
    _write_json(out_dir / "summary.json", summary)
    return summary


def input_files(config: DataConfig, root: Path) -> list[Path]:
    """Every file that `prepare` reads: the two named or in a folder, and those of a mixture.

    Args:
        root: what the configuration's paths are relative to.

    Raises:
        DataError: a mixture cannot be read.
    """
    files = [root / file for file in prompt_files(config).values()]
    if config.source == "deepgen":
        files += [dataset.path for file in files for dataset in read_mixture(file).datasets]
    return files


def _scenes(config: DataConfig, split: Split) -> PromptSet:
    """Scenes with different prompts. The first n of a larger set are the set of n."""
    wanted = config.train_prompts if split == "train" else config.heldout_prompts
    prompts: dict[str, Prompt] = {}
    attempt = last_new = 0
    while len(prompts) < wanted and attempt - last_new < FRUITLESS_DRAWS:
        rng = random.Random(key("scene", config.seed, config.scene_kind, split, attempt))
        scene = sample_scene(rng, config.scene_kind, split)
        text = prompt(scene)
        metadata: dict[str, Any] = {"scene": to_dict(scene)}
        if scene.word is not None:
            metadata["target"] = scene.word.text
        attempt += 1
        if text not in prompts:
            prompts[text] = Prompt(len(prompts), 0, text, metadata)
            last_new = attempt
    if len(prompts) < wanted:
        raise DataError(
            f"data.{split}_prompts {wanted}: scene_kind {config.scene_kind!r} holds too few "
            f"different prompts (found {len(prompts)}); ask for fewer"
        )
    return PromptSet(tuple(prompts.values()), split)


def read_splits(config: DataConfig) -> tuple[PromptSet, PromptSet, int]:
    """Training and held-out prompts of files, and how many of the first stand in the others too.

    Raises:
        DataError: a prompt file is missing or malformed, or a split would be empty.
    """
    if config.path is None:
        raise DataError(f"data.path: source {config.source!r} needs a prompt file")
    files = prompt_files(config)
    path = files["train"]
    prompts = read_prompts_file(config.source, path)
    dropped = 0
    if "heldout" in files:
        heldout = read_prompts_file(config.source, files["heldout"])
        held_texts = {one.text for one in heldout}
        train = [one for one in prompts if one.text not in held_texts]
        dropped = len(prompts) - len(train)
        hint = f"every prompt stands in {files['heldout']} too"
    else:
        heldout = [one for one in prompts if _is_held_out(one, config.seed)]
        train = [one for one in prompts if not _is_held_out(one, config.seed)]
        hint = f"its {len(prompts)} prompts are too few to split; name a data.heldout_path"
    for split, rest in (("training", train), ("held-out", heldout)):
        if not rest:
            raise DataError(f"{path}: no {split} prompt is left: {hint}")
    return (
        PromptSet(_chosen(train, config.train_prompts, config.seed), "train"),
        PromptSet(_chosen(heldout, config.heldout_prompts, config.seed), "heldout"),
        dropped,
    )


def _content(one: Prompt) -> str:
    """What is split as one: the text, or of a pair both texts."""
    partner = one.metadata.get("partner")
    return one.text if partner is None else "\n".join(sorted((one.text, str(partner))))


def _is_held_out(one: Prompt, seed: int) -> bool:
    return uniform("prompt split", seed, _content(one)) < HELDOUT_SHARE


def _chosen(prompts: Sequence[Prompt], most: int, seed: int) -> tuple[Prompt, ...]:
    """At most `most` prompts, drawn by a hash of their content (not the head), in file order."""
    order = sorted(
        range(len(prompts)), key=lambda i: (key("prompt choice", seed, _content(prompts[i])), i)
    )
    return tuple(prompts[index] for index in sorted(order[:most]))


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
        "different_texts": len({one.text for one in prompts}),
        "datasets": len({one.dataset_id for one in prompts}),
        "digest": prompts.digest,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(path)
