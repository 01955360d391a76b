"""Several data sets as one table: their prompts joined, and how often each is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from atelier.data.datasets import Dataset, Mixture, labelled
from atelier.data.prompts import Prompt, PromptSet
from atelier.data.samplers import SHARE, sampling_shares
from atelier.data.splits import Splits, identity_of
from atelier.errors import DataError


def joined(parts: Sequence[tuple[Dataset, Splits]]) -> Splits:
    """The data sets, each split by itself, as one; a training prompt that another data set holds
    out is dropped.

    Raises:
        DataError: a data set has no training prompt left.
    """
    held = {identity_of(one) for _, splits in parts for one in splits.heldout}
    train, heldout, dropped = [], [], 0
    for dataset, splits in parts:
        kept = [one for one in splits.train if identity_of(one) not in held]
        if not kept:
            raise DataError(
                f"data set {dataset.name}: no training prompt is left: all are held out by others"
            )
        dropped += splits.dropped + len(splits.train) - len(kept)
        train += [labelled(one, dataset) for one in kept]
        heldout += [labelled(one, dataset) for one in splits.heldout]
    left_out = {
        split: sum(splits.left_out[split] for _, splits in parts) for split in ("train", "heldout")
    }
    malformed = [one for _, splits in parts for one in splits.malformed]
    tables = PromptSet(tuple(train), "train"), PromptSet(tuple(heldout), "heldout")
    return Splits(*tables, dropped, left_out, malformed)


def mixed(splits: Splits, mixture: Mixture) -> Splits:
    """The same with the share of every training prompt, and held-out prompts of the data sets in
    turns, so that the first of them, which a periodic evaluation takes, are of all."""
    weights = {one.dataset_id: one.sample_weight for one in mixture.datasets}
    shares = sampling_shares(
        [one.dataset_id for one in splits.train], weights, mixture.sampling_mode
    )
    train = tuple(
        replace(one, metadata={**one.metadata, SHARE: share})
        for one, share in zip(splits.train, shares, strict=True)
    )
    heldout = in_turns(splits.heldout)
    return replace(splits, train=PromptSet(train, "train"), heldout=PromptSet(heldout, "heldout"))


def in_turns(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """The prompts of all data sets spread evenly over the table, each data set in its order."""
    own: dict[int, list[Prompt]] = {}
    for one in prompts:
        own.setdefault(one.dataset_id, []).append(one)
    placed = [
        ((place + 0.5) / len(members), dataset, one)
        for dataset, members in own.items()
        for place, one in enumerate(members)
    ]
    return tuple(one for *_, one in sorted(placed, key=lambda item: item[:2]))


def without_target(mixture: Mixture, train: Iterable[Prompt]) -> dict[str, int]:
    """Of each data set that is rewarded by what reads text, by name, how many training prompts do
    not say which text, so that they are not rewarded by it."""
    reading = {one.dataset_id: one.name for one in mixture.datasets if one.reads_text}
    found = dict.fromkeys(reading.values(), 0)
    for one in train:
        if one.dataset_id in reading and "target" not in one.metadata:
            found[reading[one.dataset_id]] += 1
    return found


def described(mixture: Mixture, splits: Splits) -> dict[str, Any]:
    """What the summary of the tables says of a mixture. `drawn` is a data set's expected share of
    the prompts of a step, where a step is a small part of the table; `heldout` counts prompts of
    its own, not those of a held-out file; `without_target` is null where nothing reads text."""
    total = sum(one.metadata[SHARE] for one in splits.train)
    unread = without_target(mixture, splits.train)
    held = Counter(one.metadata.get("dataset") for one in splits.heldout)

    def of(dataset: Dataset) -> dict[str, Any]:
        train = [one for one in splits.train if one.dataset_id == dataset.dataset_id]
        return {
            "dataset_id": dataset.dataset_id,
            "name": dataset.name,
            "sample_weight": dataset.sample_weight,
            "rewards": dict(dataset.rewards),
            "train": len(train),
            "heldout": held[dataset.name],
            "without_target": unread.get(dataset.name),
            "drawn": sum(one.metadata[SHARE] for one in train) / total,
        }

    return {
        "sampling_mode": mixture.sampling_mode,
        "datasets": [of(one) for one in mixture.datasets],
    }
