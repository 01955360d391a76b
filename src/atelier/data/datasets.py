"""The data sets of a mixture, and what the prompts of each say of it.

In the metadata of a training prompt "dataset" is the name of its data set, "rewards" what its
images are rewarded by (rewards/mixes.py), samplers.SHARE how often it is drawn. So a table says all
that a step needs to know of a mixture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atelier.config.reward_names import ours
from atelier.config.sections.datasets import TARGET_REWARDS, SamplingMode
from atelier.data.prompts import Prompt


@dataclass(frozen=True)
class Dataset:
    """One data set of a mixture.

    Attributes:
        dataset_id: that of its prompts.
        rewards: name and weight; empty where its images are rewarded by all, with their own.
        path: its prompt file, where a file names the data sets.
    """

    dataset_id: int
    name: str
    sample_weight: float
    rewards: Mapping[str, float]
    path: Path | None = None

    @property
    def reads_text(self) -> frozenset[str]:
        """Those of its rewards that look for a text, of which a prompt must say which."""
        return frozenset(name for name in self.rewards if ours(name) in TARGET_REWARDS)


@dataclass(frozen=True)
class Mixture:
    """What is mixed, and how."""

    sampling_mode: SamplingMode
    datasets: Sequence[Dataset]


def labelled(
    prompt: Prompt, dataset: Dataset, rewards: Mapping[str, float] | None = None
) -> Prompt:
    """The prompt as one of its data set.

    Args:
        rewards: of this prompt; default: those of the data set.
    """
    mix = dict(dataset.rewards if rewards is None else rewards)
    own = {"dataset": dataset.name, **({"rewards": mix} if mix else {})}
    return replace(prompt, dataset_id=dataset.dataset_id, metadata={**prompt.metadata, **own})
