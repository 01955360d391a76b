"""Which keys of a configuration hold a path, where a person may write `~`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

# A star is any name. Some may hold a hub id or another name instead, which begins with no `~`.
PATH_KEYS = (
    *(f"data.{key}" for key in ("path", "heldout_path", "unpaired_path", "curriculum.scores")),
    *("data.datasets.*.path", "data.datasets.*.heldout_path", "data.sft.files.*.path"),
    "data.sft.files.*.data_root",
    *("policy.path", "policy.layout", "policy.bases.*"),
    *("rollout.environment.adapter", "rollout.sampler.server.environment"),
    *("rewards.*.path", "rewards.*.processor", "rewards.*.regions.checkpoint"),
    *("rewards.*.server.environment", "rewards.custom.*.server.environment"),
    *("judges.*.model", "judges.*.ledger", "judges.*.cache.folder", "judges.*.server.environment"),
    "evaluation.mmmg.regions.checkpoint",
)


def expand_home(values: dict[str, Any]) -> None:
    """Put the home directory in the place of `~` at the beginning of paths, in a configuration as
    it was written: no shell does it behind `key=`. What is no path is left alone."""
    for key in PATH_KEYS:
        *sections, name = key.split(".")
        for section in _sections(values, sections):
            for each in [*section] if name == "*" else [name]:
                value = section.get(each)
                if isinstance(value, str) and value.startswith("~"):
                    section[each] = os.path.expanduser(value)


def _sections(values: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """The mappings at a key, of which there may be none."""
    if not isinstance(values, dict):
        return
    if not names:
        yield values
        return
    for each in [*values] if names[0] == "*" else [names[0]]:
        yield from _sections(values.get(each), names[1:])
