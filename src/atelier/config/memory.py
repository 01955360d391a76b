"""How much memory a rank needs, estimated from the files of the model, without loading it.

    weights       4 B x parameters (float32 masters), and as much again for a frozen reference
                  when everything is trained and beta > 0 (an adapter is switched off instead)
    frozen parts  text encoders and VAE, as stored
    gradients     4 B x trained parameters
    optimizer     8 B x trained parameters (AdamW: two moments)
    EMA           4 B x trained parameters
    trajectories  4 B x images a rank x (window + 1) x latent values
    activations   34 values a token, channel and layer (Korthikanti et al. 2022, arXiv 2205.05198,
                  eq. 2 without the attention matrices, which fused attention never stores, counts
                  34 B in 16 bit: 17 values), doubled for the two streams of an MMDiT block, for
                  one micro-batch; twice that with guidance; one layer and the layers' inputs
                  with gradient checkpointing

ZeRO divides optimizer and gradients by the number of ranks (stage 2), weights too (stage 3). It
is an estimate to choose a machine by, not a promise: allocator and CUDA context come on top.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.config.paths import from_root, is_directory
from atelier.config.schema import LoraConfig, RunConfig
from atelier.errors import ConfigError

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
_VALUES_A_TOKEN = 34
_FROZEN_PARTS = ("text_encoder", "text_encoder_2", "text_encoder_3", "vae")
_CLIP_TOKENS = 77


@dataclass(frozen=True)
class ModelFacts:
    """What the files of a pipeline directory say."""

    parameters: int  # of the transformer
    adapter_parameters: int  # of the LoRA the configuration describes
    frozen_bytes: int  # text encoders and VAE
    latent_values: int  # channels x height x width
    tokens: int  # image and text tokens of one image
    width: int
    layers: int


@dataclass(frozen=True)
class Memory:
    """Estimated bytes a rank."""

    weights: int
    frozen: int
    gradients: int
    optimizer: int
    ema: int
    trajectories: int
    activations: int

    @property
    def total(self) -> int:
        return sum(vars(self).values())


def estimate(config: RunConfig, facts: ModelFacts, images: int, window: int, ranks: int) -> Memory:
    """Bytes each of `ranks` needs when it holds `images` images of a step. See the module."""
    adapter = config.policy.trainable == "lora"
    trained = facts.adapter_parameters if adapter else facts.parameters
    reference = facts.parameters if config.algorithm.beta > 0 and not adapter else 0
    stage = config.launch.zero_stage if config.launch.engine == "deepspeed" else 0
    shards = ranks if stage >= 2 else 1
    weights = 4 * (facts.parameters + reference + (trained if adapter else 0))
    return Memory(
        weights=weights // (ranks if stage == 3 else 1),
        frozen=facts.frozen_bytes,
        gradients=4 * trained // shards,
        optimizer=8 * trained // shards,
        ema=4 * trained if config.train.ema.enabled else 0,
        trajectories=4 * images * (window + 1) * facts.latent_values,
        activations=_activations(config, facts),
    )


def _activations(config: RunConfig, facts: ModelFacts) -> int:
    batch = config.rollout.micro_batch_size * (2 if config.rollout.guidance_scale > 1 else 1)
    value = 4 if config.policy.dtype == "float32" else 2
    layer = _VALUES_A_TOKEN * batch * facts.tokens * facts.width * value
    if config.policy.gradient_checkpointing:
        return layer + batch * facts.tokens * facts.width * value * facts.layers
    return layer * facts.layers


def read_model_facts(config: RunConfig) -> ModelFacts | None:
    """Read the pipeline directory `policy.path`; None when it is no local directory (a hub id).

    Raises ConfigError naming the file that is missing or not what it should be.
    """
    root = from_root(config.policy.path)
    if not is_directory(root):
        return None
    if not (root / "model_index.json").is_file():
        raise ConfigError(f"{config.policy.path}: no model_index.json: not a pipeline directory")
    shape = _read_json(root / "transformer" / "config.json")
    try:
        side, patch = int(shape["sample_size"]), int(shape["patch_size"])
        width = int(shape["num_attention_heads"]) * int(shape["attention_head_dim"])
        channels, layers = int(shape["in_channels"]), int(shape["num_layers"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{config.policy.path}/transformer/config.json: not an SD3 transformer: {error}"
        ) from error
    tensors = _tensors(root / "transformer")
    return ModelFacts(
        parameters=sum(math.prod(entry["shape"]) for entry in tensors.values()),
        adapter_parameters=_adapter_parameters(tensors, config.policy.lora),
        frozen_bytes=sum(_stored_bytes(root / part) for part in _FROZEN_PARTS),
        latent_values=channels * side * side,
        tokens=(side // patch) ** 2 + _text_tokens(root, config.policy.max_sequence_length),
        width=width,
        layers=layers,
    )


def _adapter_parameters(tensors: dict[str, Any], lora: LoraConfig) -> int:
    suffixes = tuple(f"{target}.weight" for target in lora.target_modules)
    return sum(
        lora.rank * sum(entry["shape"])
        for name, entry in tensors.items()
        if name.endswith(suffixes) and len(entry["shape"]) == 2
    )


def _text_tokens(root: Path, t5_tokens: int) -> int:
    """CLIP's length and T5's, which SD3 lays one behind the other. Without a T5 it lays as many
    zeros there; the embedded model's funnel shrinks them to one (policies/sd3/tiny.py)."""
    third = _read_json(root / "model_index.json").get("text_encoder_3") or []
    if "FunnelBaseModel" in third:
        t5_tokens = 1
    file = root / "tokenizer" / "tokenizer_config.json"
    length = _read_json(file).get("model_max_length") if file.is_file() else None
    return (length if isinstance(length, int) and length < 10_000 else _CLIP_TOKENS) + t5_tokens


def _stored_bytes(folder: Path) -> int:
    entries = _tensors(folder) if folder.is_dir() else {}
    return sum(
        math.prod(entry["shape"]) * _BYTES.get(entry["dtype"], 4) for entry in entries.values()
    )


def _tensors(folder: Path) -> dict[str, Any]:
    """Name, dtype and shape of every tensor, from the headers of the folder's safetensors."""
    files = sorted(folder.glob("*.safetensors"))
    full = [file for file in files if ".fp16." not in file.name]
    entries: dict[str, Any] = {}
    for file in full or files:
        entries |= _header(file)
    return entries


def _header(file: Path) -> dict[str, Any]:
    """A safetensors header: 8 bytes of length, little-endian, then that much JSON."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(min(length, 100_000_000)))
    except (OSError, struct.error, ValueError) as error:
        raise ConfigError(f"{file}: not a safetensors file: {error}") from error
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: expected a JSON object")
    return value
