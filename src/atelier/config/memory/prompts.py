"""Embeddings of a run's prompts: how much they are, and whether what makes them is freed.

Text encoders leave the device before the transformer comes, where the cache keeps the embedding of
every prompt (policies/cached_encoder.py); some of these stay there, and those of a step all the
time that it learns from them. DeepGen's language model stays where an embedding depends
on an image or on the batch it is in, which no cache keeps. How many prompts and captions files
have is not known here: those of scenes alone are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from atelier.config.facts.sd3 import SD3Facts
from atelier.config.schema import RunConfig
from atelier.config.sections.data import DataConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES
from atelier.disk import amount

EMBEDDINGS_ON_DEVICE = 2**27  # bytes; the least recently used go first
_GIGABYTE = 10**9


def encoders_stay(config: RunConfig, facts: SD3Facts) -> bool:
    """Whether they are on the device together with what is trained."""
    return encodes_as_it_goes(config) or embedded_bytes(config, facts) > _kept_bytes(config)


def encodes_as_it_goes(config: RunConfig) -> bool:
    """Whether embeddings depend on more than their prompt."""
    is_maskless = config.policy.connector.padding == "maskless"
    is_deepgen = config.policy.family == "deepgen"
    return is_deepgen and (is_maskless or config.rollout.kind == "edit")


def embedded_bytes(config: RunConfig, facts: SD3Facts) -> int:
    """Of the embeddings of all prompts and captions that are scenes', and of the empty prompt."""
    return (1 + _scenes(config)) * facts.embedding_values * DTYPE_BYTES[config.policy.text.dtype]


def bytes_on_device(config: RunConfig, facts: SD3Facts, images: int) -> int:
    """Of the embeddings on the device, at most. `images` are those whose experience is kept: each
    may have a prompt of its own. What depends on more than a prompt is made for each."""
    if encodes_as_it_goes(config):
        return 4 * images * facts.condition_values
    own = images * facts.embedding_values * DTYPE_BYTES[config.policy.text.dtype]
    kept = max(EMBEDDINGS_ON_DEVICE, own)
    return min(kept, embedded_bytes(config, facts)) if _scenes_alone(config) else kept


def prompt_warnings(config: RunConfig, facts: SD3Facts) -> Iterator[tuple[str, str]]:
    """Field and text where embeddings would fit and a cache is too small for them."""
    needed, text = embedded_bytes(config, facts), config.policy.text
    if encodes_as_it_goes(config) or needed <= _kept_bytes(config):
        return
    encoders = facts.text_parameters * DTYPE_BYTES[text.dtype]
    yield (
        "policy.text.disk_gigabytes",
        f"embeddings of {1 + _scenes(config):,} prompts and captions are up to {amount(needed)}, "
        f"more than policy.text.memory_gigabytes {text.memory_gigabytes:g} or this, "
        f"{text.disk_gigabytes:g}, keeps: {amount(encoders)} of text encoders stay beside what is "
        f"trained, and encode again; {-(-needed // _GIGABYTE)} holds all",
    )


def _scenes_alone(config: RunConfig) -> bool:
    """Whether all prompts and captions are made for the run, so that their number is known."""
    data, parts = config.data, _parts(config)
    from_files = any(one.source != "scenes" or one.heldout_path is not None for one in parts)
    return not from_files and not (config.train.sft.enabled and data.sft.source != "scenes")


def _scenes(config: RunConfig) -> int:
    """Prompts and captions that are made for the run."""
    data, parts = config.data, _parts(config)
    prompts = sum(
        one.train_prompts + (one.heldout_prompts if one.heldout_path is None else 0)
        for one in parts
        if one.source == "scenes"
    )
    captions = data.sft.scenes if config.train.sft.enabled and data.sft.source == "scenes" else 0
    return prompts + captions


def _parts(config: RunConfig) -> Collection[DataConfig]:
    """The data sets of a mixture, or the one there is."""
    return config.data.parts().values() or (config.data,)


def _kept_bytes(config: RunConfig) -> int:
    """What is on the disk is what was in memory, and more."""
    text = config.policy.text
    return int(max(text.memory_gigabytes, text.disk_gigabytes) * _GIGABYTE)
