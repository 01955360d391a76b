"""Which rewards count for an image: those that its data set names.

A prompt's metadata may hold the mix of its data set, {"rewards": {name: weight}}. A reward that the
mix names counts with the mix's weight; one that it does not name, or with 0, is not asked at all.
Without a mix the weights are those of the sections.

Deviation: the published trainer asks every reward about every image, and then weighs with 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from atelier.config.reward_names import ours, unset_problem
from atelier.errors import ConfigError


def mix_of(metadata: Mapping[str, Any], known: Collection[str]) -> dict[str, float] | None:
    """Name and weight of the rewards that the image's data set names; None where it names none.

    Args:
        known: names of the rewards that are set: no published name of another one.
    """
    mix: Mapping[str, Any] | None = metadata.get("rewards")
    if not isinstance(mix, Mapping) or not mix:
        return None
    return {name if name in known else ours(name): float(weight) for name, weight in mix.items()}


def weight_for(name: str, own: float, mix: Mapping[str, float] | None) -> float | None:
    """The weight of a reward for an image; None where it is not asked.

    Args:
        own: its section's weight; 0 is asked and only logged.
        mix: as `mix_of` gives it.
    """
    return own if mix is None else mix.get(name) or None


def require_mixes(metadata: Iterable[Mapping[str, Any]], known: Collection[str]) -> None:
    """Every mix is of rewards that are set, and rewards something.

    Raises:
        ConfigError: one is not; the data set and the key are named.
    """
    checked: list[Any] = []
    for one in metadata:
        mix = one.get("rewards")
        if not isinstance(mix, Mapping) or not mix or mix in checked:
            continue
        checked.append(mix)
        dataset = one.get("dataset", "of data.path")
        if not all(isinstance(weight, int | float) for weight in mix.values()):
            raise ConfigError(f"data.path: rewards of data set {dataset}: weights are numbers")
        ours = mix_of(one, known) or {}
        for name in sorted(ours.keys() - set(known)):
            raise ConfigError(f"rewards.{name}: data set {dataset} {unset_problem(name, known)}")
        if len(ours) < len(mix):
            raise ConfigError(
                f"data.path: data set {dataset} names one reward twice: {', '.join(mix)}"
            )
        if not any(ours.values()):
            raise ConfigError(f"data.path: data set {dataset} gives every reward the weight 0")
