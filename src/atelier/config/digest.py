"""Digests of configuration: what tells whether an earlier result is still this run's result."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from atelier.config.schema import RunConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import RewardSection

# Of `evaluation`, what shapes the images that the trainer generates periodically, and their scores:
# all but how many there are before and after it, and how intervals are drawn.
_PERIODIC = frozenset(EvaluationConfig().shape()) - {"prompts", "bootstrap_samples"}
# Of `rollout`, what shapes evaluated images, too: what a sample is, and what it is painted from.
_SAMPLE = frozenset(
    {"kind", "tokens", "introspection", "editing", "completion", "conditioning", "environment"}
)
_EVERYTHING = None
_TRAIN: dict[str, frozenset[str] | None] = {
    "data": _EVERYTHING,
    "policy": _EVERYTHING,
    "rollout": _EVERYTHING,
    "algorithm": _EVERYTHING,
    "train": _EVERYTHING,
    "rewards": _EVERYTHING,
    "judges": _EVERYTHING,
    "evaluation": _PERIODIC,
    "launch": _EVERYTHING,
}
# What shapes a stage: sections, whole or in part. Never an operational field (schema), how a run is
# mirrored (tracking), or the recipe's name: equal values are equal runs. Processes are operational:
# results are independent of the world size, but for `stage_digest`'s exception.
SHAPED_BY: dict[str, dict[str, frozenset[str] | None]] = {
    "prepare": {"data": _EVERYTHING},
    "baseline": {
        **dict.fromkeys(("data", "policy", "evaluation"), _EVERYTHING),
        "rollout": _SAMPLE,
    },
    "train": _TRAIN,
    # Averaged or last weights: what is exported is what is evaluated.
    "evaluate": {**_TRAIN, "evaluation": _EVERYTHING, "export": frozenset({"weights"})},
    "export": {**_TRAIN, "export": _EVERYTHING},
    "report": {**_TRAIN, "evaluation": _EVERYTHING, "export": _EVERYTHING},
}


def digest(value: Any) -> str:
    """sha256 (64 hex digits) of a JSON value in canonical form: sorted keys, no spaces, no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def stage_digest(config: RunConfig, stage: str) -> str:
    """Digest of all configuration that shapes `stage` (prepare, baseline, train, ...)."""
    values = config.shape()
    shape = {
        section: values[section]
        if keys is _EVERYTHING
        else {key: values[section][key] for key in sorted(keys)}
        for section, keys in SHAPED_BY[stage].items()
    }
    # Each rank draws a window of its own: here alone, how many there are shapes what is trained.
    if "train" in shape and config.rollout.window.scope == "rank":
        shape["ranks"] = config.launch.ranks
    # The judge that scores held-out images, where the stage does not depend on all of them.
    asked = config.evaluation.judge
    if asked is not None and "evaluation" in shape and "judges" not in shape:
        shape["judge"] = config.judges[asked].shape()
    return digest({"stage": stage, **shape})


def scorer_digest(name: str, section: RewardSection, judge: JudgeConfig | None = None) -> str:
    """Digest of all configuration that shapes a reward's scores. Its weight does not: a service
    may be shared by runs that weigh it differently. Nor does what the judge is called here."""
    shape = section.shape()
    del shape["weight"]
    if judge is not None:
        shape["judge"] = judge.shape()
    return digest({"reward": name, **shape})
