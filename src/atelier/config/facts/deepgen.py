"""What the files of a DeepGen model say about its size.

Source: spec deepgen 1, 7.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.config.facts.files import Tensors, count, read_json, stored_bytes, tensors_in
from atelier.config.facts.sd3 import SD3Facts, painted_shape, weights_of
from atelier.config.facts.targets import adapter_parameters, modules, unknown_targets
from atelier.config.policy_parts import holds_weights_alone
from atelier.config.schema import LORA_TARGETS, PolicyConfig, RunConfig
from atelier.errors import ConfigError

FOLDERS = ("transformer", "vae", "scheduler", "vlm", "connector", "tokenizer")
CLASS = "DeepGenPipeline"
PROMPT_TOKENS = 128  # with its template; how long prompts are is not known
PUBLISHED_QUERIES = 128
PUBLISHED_BRIDGE = 432_449_532  # parameters of the connector, its projections and queries
PUBLISHED_STATES = 12_288  # values of a token that it reads


@dataclass(frozen=True, kw_only=True)
class DeepGenFacts(SD3Facts):
    """Sizes of a model for what a configuration trains and asks for.

    `parameters` are those of the transformer, and of the connector where it is trained;
    `text_parameters` those of the language model and the connector.

    Attributes:
        bridge_parameters: of the connector, its projections and queries.
    """

    bridge_parameters: int


@dataclass(frozen=True)
class Bridge:
    """Sizes of a connector.

    Attributes:
        parameters: with its projections and queries.
        bytes: of them in files.
        queries: learned tokens behind every prompt.
        query_parameters: of these, which are never trained.
        states: values of a token that it reads.
    """

    parameters: int = PUBLISHED_BRIDGE
    bytes: int = 4 * PUBLISHED_BRIDGE  # as published: 1.6 GiB
    queries: int = PUBLISHED_QUERIES
    query_parameters: int = PUBLISHED_QUERIES * 2048
    states: int = PUBLISHED_STATES


def is_deepgen(root: Path) -> bool:
    """Whether a directory is in the layout of DeepGen, by its folders or by its index."""
    if all((root / name).is_dir() for name in ("transformer", "vlm", "connector")):
        return True
    index = root / "model_index.json"
    name = read_json(index).get("_class_name") if index.is_file() else None
    return name == CLASS or (isinstance(name, list) and CLASS in name)


def read_deepgen(root: Path, config: RunConfig) -> DeepGenFacts:
    """Read the model directory `root`.

    Raises ConfigError naming the file that is missing or not what it should be, or
    policy.resolution where the model has no place for such images.
    """
    lacking = [name for name in FOLDERS if not (root / name).is_dir()]
    if lacking:
        raise ConfigError(f"{root}: has no {lacking[0]}/, so it is no DeepGen model")
    return _facts(config, root, weights_of(root / "vlm"), _bridge(root / "connector"))


def read_checkpoint(pipeline: Path, vlm: Path, config: RunConfig) -> DeepGenFacts:
    """Of a file of weights over the models that it was trained from. Its connector is taken to be
    as large as the published one: no header says it."""
    return _facts(config, pipeline, weights_of(vlm), Bridge())


def deepgen_facts(
    config: RunConfig, text_parameters: int, text_bytes: int, bridge: Bridge, **painted: Any
) -> DeepGenFacts:
    """Sizes by those of the parts.

    Args:
        text_parameters: of the language model, its vision tower and its text head.
        painted: of SD3Facts: all that is of the transformer and the autoencoder.
    """
    with_bridge = config.policy.trainable == "dit_connector"
    text_width = painted.pop("text_width")
    return DeepGenFacts(
        parameters=painted.pop("parameters") + (bridge.parameters if with_bridge else 0),
        untrained_parameters=bridge.query_parameters if with_bridge else 0,
        text_parameters=text_parameters + bridge.parameters,
        frozen_bytes=painted.pop("frozen_bytes")
        + text_bytes
        + (0 if with_bridge else bridge.bytes),
        text_tokens=PROMPT_TOKENS + bridge.queries,
        text_width=bridge.states if with_bridge else text_width,
        bridge_parameters=bridge.parameters,
        **painted,
    )


def of_checkpoint(policy: PolicyConfig) -> bool:
    """Whether a policy starts from a file of weights over its bases."""
    return policy.family == "deepgen" and holds_weights_alone(policy.path)


def _facts(config: RunConfig, painter: Path, vlm: Tensors, bridge: Bridge) -> DeepGenFacts:
    lora = config.policy.lora
    transformer, vae = weights_of(painter / "transformer"), weights_of(painter / "vae")
    linear = modules(transformer)
    return deepgen_facts(
        config,
        count(vlm),
        stored_bytes(vlm),
        bridge,
        parameters=count(transformer),
        adapter_parameters=adapter_parameters(linear, lora),
        # A transformer of one block has no attn.to_add_out.
        unknown_targets=unknown_targets(linear, lora, may_lack=LORA_TARGETS["deepgen"]),
        vae_parameters=count(vae),
        frozen_bytes=stored_bytes(vae),
        **painted_shape(painter, config),
    )


def _bridge(folder: Path) -> Bridge:
    found = tensors_in(sorted(folder.glob("*.safetensors")))
    try:
        queries, width = found["meta_queries"].shape
        states = found["projector_1.weight"].shape[1]
    except (KeyError, ValueError, IndexError) as error:
        raise ConfigError(f"{folder}: no connector of a DeepGen model: {error!r}") from error
    return Bridge(count(found), stored_bytes(found), queries, queries * width, states)
