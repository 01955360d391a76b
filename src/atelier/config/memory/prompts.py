"""Embeddings of a run's prompts: how much they are, and whether what makes them is freed.

Text encoders leave the device before the transformer comes, where the cache keeps the embedding of
every prompt (policies/cached_encoder.py). DeepGen's language model stays where an embedding depends
on an image or on the batch it is in, which no cache keeps. How many prompts and captions files
have is not known here: those of scenes alone are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.facts.sd3 import SD3Facts
from atelier.config.schema import RunConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES
from atelier.disk import amount

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


def _scenes(config: RunConfig) -> int:
    """Prompts and captions that are made for the run."""
    data = config.data
    parts = data.parts().values() or (data,)
    prompts = sum(
        one.train_prompts + (one.heldout_prompts if one.heldout_path is None else 0)
        for one in parts
        if one.source == "scenes"
    )
    captions = data.sft.scenes if config.train.sft.enabled and data.sft.source == "scenes" else 0
    return prompts + captions


def _kept_bytes(config: RunConfig) -> int:
    """What is on the disk is what was in memory, and more."""
    text = config.policy.text
    return int(max(text.memory_gigabytes, text.disk_gigabytes) * _GIGABYTE)
