"""Why a model cannot be trained as a configuration says: the field to change, and the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from zipfile import is_zipfile

from atelier.config.facts.deepgen import of_checkpoint
from atelier.config.facts.files import require_to_the_end
from atelier.config.facts.janus import JanusFacts
from atelier.config.facts.qwen import QwenFacts
from atelier.config.facts.read import Facts, source
from atelier.config.paths import from_root, is_directory, is_file
from atelier.config.schema import RunConfig
from atelier.config.secret_names import without_user
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import holds_weights_alone
from atelier.errors import ConfigError
from atelier.weight_index import WEIGHTS_INDEX, weight_files

Rejections = Iterator[tuple[str, str]]

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_KINDS = {"sd3": "pipeline", "deepgen": "model", "janus": "model", "qwen": "pipeline"}
_TRAINED = {
    "sd3": "the transformer",
    "deepgen": "the transformer",
    "janus": "the language model",
    "qwen": "the text encoder's language model",
}
# How a file of torch.save begins: an archive, or before torch 1.6 a bare pickle.
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
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
    if policy.revision is not None and not of_checkpoint(policy):
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
    if isinstance(facts, JanusFacts):
        yield from _position_rejections(config, facts)
    if isinstance(facts, QwenFacts) and config.rollout.kind != _DRAWN[facts.kind]:
        yield (
            "rollout.kind",
            f"{config.rollout.kind}, and {source(policy)} is a pipeline of another kind; use "
            f"{_DRAWN[facts.kind]}",
        )


def _position_rejections(config: RunConfig, facts: JanusFacts) -> Rejections:
    """What no prompt is short enough for; longer ones are refused when they are read."""
    settings = config.rollout.introspection
    if config.rollout.kind != "introspect" or facts.positions is None:
        return
    answers = (settings.rounds - 1) * settings.answer_tokens
    needed = settings.rounds * facts.images.tokens + answers
    if needed >= facts.positions:
        yield (
            "rollout.introspection.rounds",
            f"{settings.rounds} images and the answers between them are {needed} tokens "
            f"without their prompt, and the model was made for {facts.positions}; lower it or "
            "rollout.introspection.answer_tokens",
        )


def _weights_rejections(policy: PolicyConfig) -> Rejections:
    """A file of weights, whose structure policy.layout or policy.bases says."""
    if policy.family == "deepgen":
        yield from _checkpoint_rejections(policy)
    if policy.family != "janus":
        return
    if holds_weights_alone(policy.path):
        yield from _saved_rejections("policy.path", policy.path)
    elif policy.layout is not None and not is_file(from_root(policy.path)):
        yield "policy.layout", f"is for a file of weights, and policy.path {policy.path} is none"


def _checkpoint_rejections(policy: PolicyConfig) -> Rejections:
    if not of_checkpoint(policy):
        return
    yield from _saved_rejections("policy.path", policy.path)
    sft = policy.bases.sft
    if sft is not None and holds_weights_alone(sft):
        yield from _saved_rejections("policy.bases.sft", sft)
    elif sft is not None:
        yield (
            "policy.bases.sft",
            f"{sft} is no file of weights: *.pth, *.bin, *.safetensors or its index",
        )
    if policy.revision is not None:
        yield (
            "policy.revision",
            f"{policy.path} is a file of weights, only a hub id has revisions; name directories of "
            "the ones you mean as policy.bases.vlm and policy.bases.pipeline",
        )


def _saved_rejections(key: str, path: str) -> Rejections:
    """A file that is not there, or that was not written to its end."""
    file = from_root(path)
    if is_directory(file):
        yield key, f"{path} is a directory and no file of weights; {_consolidating(file)}"
    elif not is_file(file):
        yield key, f"there is no file {path}"
    elif file.name.endswith((".safetensors", WEIGHTS_INDEX)):
        try:
            for one in weight_files(file):
                if one.suffix == ".safetensors":
                    require_to_the_end(one)
        except ConfigError as error:
            yield key, str(error)
    else:
        yield from _pickle_rejections(key, path, file)


def _consolidating(folder: Path) -> str:
    """What makes a file of a directory as DeepSpeed writes it, one file a rank."""
    out = folder.with_name(f"{folder.stem}-whole")
    return (
        "where DeepSpeed wrote it, `python -m deepspeed.utils.zero_to_fp32 "
        f"{folder.parent} {out} --tag {folder.name} --max_shard_size 100GB` makes one of it: "
        f"{out}/pytorch_model.bin"
    )


def _pickle_rejections(key: str, path: str, file: Path) -> Rejections:
    with file.open("rb") as saved:
        begin = saved.read(len(_ZIP))
    if begin == _ZIP and not is_zipfile(file):
        yield key, f"{path} is cut off: copy it again"
    elif begin != _ZIP and not begin.startswith(_PICKLE):
        what = "is empty" if not begin else "is no file of torch.save"
        yield key, f"{path} {what}: name a checkpoint of weights"


def _hub_rejections(policy: PolicyConfig) -> Rejections:
    name = source(policy)
    if of_checkpoint(policy):
        return
    if policy.family == "janus" and policy.layout is None and holds_weights_alone(name):
        return  # token_rules.py asks for the layout
    if not HUB_ID.fullmatch(name) or is_file(from_root(name)):
        key = "policy.path" if policy.layout is None else "policy.layout"
        yield (
            key,
            f"{without_user(name)} is neither a {_KINDS[policy.family]} directory nor a hub id",
        )
