"""Which supervised losses cannot be computed beside the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atelier.config.divisors import counted, nearest_multiples
from atelier.config.prompt_files import can_be_had, shards_of
from atelier.config.schema import RunConfig
from atelier.config.sections.sft import PicturesConfig

Rejections = Iterator[tuple[str, str]]


def picture_files(pictures: PicturesConfig) -> list[tuple[str, Path]]:
    """Key below `data` and path of every file of captioned pictures, all shards among them."""
    return [
        (f"sft.files.{name}.path", shard)
        for name, file in pictures.named_files.items()
        for shard in shards_of(Path(file.path))
    ]


def picture_micro_batch(config: RunConfig) -> int:
    """Pictures that pass through the model together."""
    return min(config.rollout.micro_batch_size, config.train.sft.pictures_per_update)


def sft_rejections(config: RunConfig, ranks: int) -> Rejections:
    """Field and reason."""
    for key, file in picture_files(config.data.sft):
        if not can_be_had(file):
            yield f"data.{key}", f"there is no file {file}"
    if not config.train.sft.enabled:
        return
    if config.policy.family in ("janus", "qwen"):
        yield (
            "train.sft.coefficient",
            f"{config.policy.family} does not learn from pictures, only policies that denoise do; "
            "use 0",
        )
    if config.data.sft.source is None:
        yield "train.sft.coefficient", "needs captioned pictures: data.sft.source scenes or files"
    yield from _sharing_rejections(config, ranks)


def sft_warnings(config: RunConfig) -> Rejections:
    """Field and what is likely to be a mistake."""
    sft = config.train.sft
    if sft.enabled and sft.every > config.train.steps:
        yield "train.sft.every", f"no supervised loss in {config.train.steps} steps"


def _sharing_rejections(config: RunConfig, ranks: int) -> Rejections:
    """Pictures are cut into micro-batches like images, so that results depend on no world size."""
    pictures, size = config.train.sft.pictures_per_update, picture_micro_batch(config)
    if config.data.sft.source == "scenes" and config.data.sft.scenes < pictures:
        yield (
            "data.sft.scenes",
            f"{config.data.sft.scenes} are fewer than train.sft.pictures_per_update {pictures}",
        )
    if pictures % (size * ranks):
        yield (
            "train.sft.pictures_per_update",
            f"{pictures} pictures cannot be shared in micro-batches of {size} "
            f"(rollout.micro_batch_size) by {counted(ranks, 'rank')} "
            f"(launch.processes x launch.nodes); {nearest_multiples(size * ranks, pictures)} works",
        )
