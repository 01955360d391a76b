"""Why a model cannot be trained as a configuration says: the field to change, and the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

from atelier.config.facts.deepgen import of_checkpoint
from atelier.config.facts.qwen import QwenFacts
from atelier.config.facts.read import Facts, source
from atelier.config.paths import from_root, is_file
from atelier.config.policy_parts import holds_weights_alone
from atelier.config.schema import PolicyConfig, RunConfig

Rejections = Iterator[tuple[str, str]]

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_KINDS = {"sd3": "pipeline", "deepgen": "model", "janus": "model", "qwen": "pipeline"}
_TRAINED = {
    "sd3": "the transformer",
    "deepgen": "the transformer",
    "janus": "the language model",
    "qwen": "the text encoder's language model",
}
_DRAWN = {"text": "draw", "edit": "edit"}  # what each kind of Qwen-Image's pipelines does


def model_rejections(config: RunConfig, facts: Facts | None) -> Rejections:
    """Field and reason.

    Args:
        facts: what the model's files say; None where it is no directory on this machine.
    """
    policy = config.policy
    yield from _weights_rejections(policy)
    if facts is None:
        yield from _hub_rejections(policy)
        return
    if policy.revision is not None:
        yield (
            "policy.revision",
            f"{source(policy)} is a directory, only a hub id has revisions",
        )
    if policy.trainable == "lora" and (facts.unknown_targets or not facts.adapter_parameters):
        names = ", ".join(facts.unknown_targets) or "the empty list"
        yield (
            "policy.lora.target_modules",
            f"{names} names no linear layer of {_TRAINED[policy.family]}, or other modules, too",
        )
    if isinstance(facts, QwenFacts) and config.rollout.kind != _DRAWN[facts.kind]:
        yield (
            "rollout.kind",
            f"{config.rollout.kind}, and {source(policy)} is a pipeline of another kind; use "
            f"{_DRAWN[facts.kind]}",
        )


def _weights_rejections(policy: PolicyConfig) -> Rejections:
    """A file of weights, whose structure policy.layout or policy.bases says."""
    if policy.family == "deepgen":
        yield from _checkpoint_rejections(policy)
    if policy.family != "janus":
        return
    if holds_weights_alone(policy.path):
        if not is_file(from_root(policy.path)):
            yield "policy.path", f"there is no file {policy.path}"
    elif policy.layout is not None and not is_file(from_root(policy.path)):
        yield "policy.layout", f"is for a file of weights, and policy.path {policy.path} is none"


def _checkpoint_rejections(policy: PolicyConfig) -> Rejections:
    """Files that are not there."""
    files = {"policy.path": policy.path, "policy.bases.sft": policy.bases.sft}
    for key, path in files.items():
        if path is not None and holds_weights_alone(path) and not is_file(from_root(path)):
            yield key, f"there is no file {path}"


def _hub_rejections(policy: PolicyConfig) -> Rejections:
    name = source(policy)
    if of_checkpoint(policy):
        return
    if policy.family == "janus" and policy.layout is None and holds_weights_alone(name):
        return  # token_rules.py asks for the layout
    if not HUB_ID.fullmatch(name) or is_file(from_root(name)):
        key = "policy.path" if policy.layout is None else "policy.layout"
        yield key, f"{name} is neither a {_KINDS[policy.family]} directory nor a hub id"
