"""What the files of a DeepGen model say about its size.

Source: DeepGen-RL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.config.facts.connector_fit import require_fitting
from atelier.config.facts.files import Tensors, below, count, read_json, stored_bytes, tensors_in
from atelier.config.facts.sd3 import SD3Facts, painted_shape, weights_of
from atelier.config.facts.targets import adapter_parameters, modules, unknown_targets
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import LORA_TARGETS, PolicyConfig
from atelier.config.sections.policy_parts import holds_weights_alone
from atelier.errors import ConfigError

FOLDERS = ("transformer", "vae", "scheduler", "vlm", "connector", "tokenizer")
CLASS = "DeepGenPipeline"
_LAYER = "connector.layers."
PROMPT_TOKENS = 128  # with its template; how long prompts are is not known
SEEN_AS_A_TOKEN = 32  # pixels of a side that one of the language model's image tokens shows
PUBLISHED_BRIDGE = 432_449_532  # parameters of the connector, its projections and queries


@dataclass(frozen=True, kw_only=True)
class DeepGenFacts(SD3Facts):
    """Sizes of a model for what a configuration trains and asks for.

    `parameters` are those of the transformer, and of the connector where it is trained;
    `text_parameters` those of the language model and the connector. `text_tokens` are all that the
    language model reads, an image that is edited among them.

    Attributes:
        bridge: sizes of the connector.
        reference_tokens: of an image that is edited, behind the noisy ones.
        edits_with_guidance: whether what guidance leads away from has an image, too.
    """

    bridge: Bridge
    reference_tokens: int = 0
    edits_with_guidance: bool = False

    @property
    def tokens(self) -> int:
        """Image, reference and text tokens of one image."""
        return self.image_tokens + self.reference_tokens + self.text_tokens

    @property
    def condition_values(self) -> int:
        """Values of all that an image is painted from, a reference's latents among them."""
        texts = (1 + self.edits_with_guidance) * self.embedding_values
        return texts + (self.latent_values if self.reference_tokens else 0)


@dataclass(frozen=True)
class Bridge:
    """Sizes of a connector.

    Attributes:
        parameters: with its projections and queries.
        bytes: of them in files.
        queries: learned tokens behind every prompt, each `query_width` wide; never trained.
        states: values of a token that it reads.
        width: values of a token between its layers.
        tokens: values of a token that it gives; pooled: of their mean.
    """

    parameters: int = PUBLISHED_BRIDGE
    bytes: int = 4 * PUBLISHED_BRIDGE  # as published: 1.6 GiB
    queries: int = 128
    query_width: int = 2048
    states: int = 12_288
    width: int = 2048
    feed_forward: int = 11_946
    layers: int = 6
    tokens: int = 4096
    pooled: int = 2048

    @property
    def query_parameters(self) -> int:
        return self.queries * self.query_width


def is_deepgen(root: Path) -> bool:
    """Whether a directory is in the layout of DeepGen, by its folders or by its index."""
    if all((root / name).is_dir() for name in ("transformer", "vlm", "connector")):
        return True
    index = root / "model_index.json"
    name = read_json(index).get("_class_name") if index.is_file() else None
    return name == CLASS or (isinstance(name, list) and CLASS in name)


def read_deepgen(root: Path, config: RunConfig) -> DeepGenFacts:
    """Read the model directory `root`.

    Raises ConfigError naming the file that is missing or not what it should be, policy.path where
    its parts do not fit each other, or policy.resolution where the model has no place for such
    images.
    """
    lacking = [name for name in FOLDERS if not (root / name).is_dir()]
    if lacking:
        raise ConfigError(f"{root}: has no {lacking[0]}/, so it is no DeepGen model")
    bridge = _bridge(root / "connector")
    texts = read_json(root / "vlm" / "config.json")
    require_fitting(bridge, texts, read_json(root / "transformer" / "config.json"))
    return _facts(config, root, weights_of(root / "vlm"), bridge)


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
    with_bridge, edits = config.policy.trainable == "dit_connector", config.rollout.kind == "edit"
    text_width = painted.pop("text_width")
    looked_at = painted["pixels"] // SEEN_AS_A_TOKEN**2 if edits else 0
    return DeepGenFacts(
        parameters=painted.pop("parameters") + (bridge.parameters if with_bridge else 0),
        untrained_parameters=bridge.query_parameters if with_bridge else 0,
        text_parameters=text_parameters + bridge.parameters,
        frozen_bytes=painted.pop("frozen_bytes")
        + text_bytes
        + (0 if with_bridge else bridge.bytes),
        text_tokens=PROMPT_TOKENS + looked_at + bridge.queries,
        text_width=bridge.states if with_bridge else text_width,
        bridge=bridge,
        reference_tokens=painted["image_tokens"] if edits else 0,
        edits_with_guidance=edits and config.rollout.guidance_scale > 1,
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
    found = tensors_in([folder / "model.safetensors"])
    try:
        queries, query_width = found["meta_queries"].shape
        width, states = found["projector_1.weight"].shape
        return Bridge(
            parameters=count(found),
            bytes=stored_bytes(found),
            queries=queries,
            query_width=query_width,
            states=states,
            width=width,
            feed_forward=found[f"{_LAYER}0.mlp.fc1.weight"].shape[0],
            layers=len({name.split(".")[2] for name in below(found, _LAYER)}),
            tokens=found["projector_3.weight"].shape[0],
            pooled=found["projector_2.weight"].shape[0],
        )
    except (KeyError, ValueError, IndexError) as error:
        raise ConfigError(f"{folder}: no connector of a DeepGen model: {error!r}") from error
