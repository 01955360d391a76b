"""What the files of a pipeline directory say about its size, read without loading it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.config.image_size import latent_side, vae_factor
from atelier.config.paths import from_root, is_directory
from atelier.config.schema import LORA_TARGETS, LoraConfig, RunConfig
from atelier.errors import ConfigError

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
_TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
_CLIP_TOKENS = 77


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a pipeline for the images a configuration asks for."""

    parameters: int  # of the transformer
    adapter_parameters: int  # of the LoRA the configuration describes
    text_parameters: int  # of all text encoders
    vae_parameters: int
    frozen_bytes: int  # text encoders and VAE, as stored
    latent_values: int  # channels x height x width
    image_tokens: int
    text_tokens: int
    text_width: int  # values of one token's embedding
    pooled_width: int
    width: int
    layers: int
    pixels: int  # of one image
    vae_channels: int  # of the widest activation at the image's full size
    unknown_targets: tuple[str, ...] = ()  # LoRA targets that are not linear layers, or nothing

    @property
    def tokens(self) -> int:
        """Image and text tokens of one image."""
        return self.image_tokens + self.text_tokens

    @property
    def condition_values(self) -> int:
        """Values of one prompt's embeddings."""
        return self.text_tokens * self.text_width + self.pooled_width


def read_model_facts(config: RunConfig) -> ModelFacts | None:
    """Read the pipeline directory `policy.path`; None when it is no local directory (a hub id).

    Raises ConfigError naming the file that is missing or not what it should be, or
    policy.resolution where the model has no place for such images.
    """
    root = from_root(config.policy.path)
    if not is_directory(root):
        return None
    if not (root / "model_index.json").is_file():
        raise ConfigError(f"{config.policy.path}: no model_index.json: not a pipeline directory")
    tensors = _tensors(root / "transformer")
    encoders = [_folder(root / part) for part in _TEXT_ENCODERS]
    vae = _folder(root / "vae")
    return ModelFacts(
        parameters=_count(tensors),
        adapter_parameters=_adapter_parameters(tensors, config.policy.lora),
        unknown_targets=_unknown_targets(tensors, config.policy.lora),
        text_parameters=sum(_count(one) for one in encoders),
        vae_parameters=_count(vae),
        frozen_bytes=sum(_stored_bytes(one) for one in (*encoders, vae)),
        text_tokens=_text_tokens(root, config.policy.max_sequence_length),
        **_shape(root, config),
    )


def _shape(root: Path, config: RunConfig) -> dict[str, int]:
    """What the configurations of transformer and autoencoder say."""
    transformer = _read_json(root / "transformer" / "config.json")
    vae = _read_json(root / "vae" / "config.json")
    try:
        side = latent_side(config.policy.resolution, transformer, vae)
        channels = [int(one) for one in vae["block_out_channels"]]
        return {
            "latent_values": int(transformer["in_channels"]) * side**2,
            "image_tokens": (side // int(transformer["patch_size"])) ** 2,
            "text_width": int(transformer["joint_attention_dim"]),
            "pooled_width": int(transformer["pooled_projection_dim"]),
            "width": int(transformer["num_attention_heads"])
            * int(transformer["attention_head_dim"]),
            "layers": int(transformer["num_layers"]),
            "pixels": (side * vae_factor(vae)) ** 2,
            "vae_channels": channels[min(1, len(channels) - 1)],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{config.policy.path}/transformer/config.json or vae/config.json: not those of a "
            f"Stable Diffusion 3 pipeline: {error!r}"
        ) from error


def is_targeted(module: str, targets: Iterable[str]) -> bool:
    """Whether peft adapts a module: its name, or the end of its name, is a target."""
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _adapter_parameters(tensors: Mapping[str, Any], lora: LoraConfig) -> int:
    return sum(
        lora.rank * sum(shape)
        for module, shape in _modules(tensors).items()
        if is_targeted(module, lora.target_modules)
    )


def _unknown_targets(tensors: Mapping[str, Any], lora: LoraConfig) -> tuple[str, ...]:
    """Targets that name nothing, or (also) something else than linear layers: a merged export
    adds the product of two matrices to a matrix. A published target may be missing: an SD3 of one
    block has no attn.to_add_out."""
    modules = _modules(tensors)
    published = set(LORA_TARGETS["sd3"])

    def is_unknown(target: str) -> bool:
        shapes = [shape for module, shape in modules.items() if is_targeted(module, (target,))]
        return any(len(shape) != 2 for shape in shapes) or not (shapes or target in published)

    return tuple(target for target in lora.target_modules if is_unknown(target))


def _modules(tensors: Mapping[str, Any]) -> dict[str, list[int]]:
    """Shape of the weight of every module."""
    return {
        name.removesuffix(".weight"): entry["shape"]
        for name, entry in tensors.items()
        if name.endswith(".weight")
    }


def _text_tokens(root: Path, t5_tokens: int) -> int:
    """CLIP's length and T5's, which SD3 lays one behind the other. Without a T5 it lays as many
    zeros there; the embedded model's funnel shrinks them to one (policies/sd3/tiny.py)."""
    third = _read_json(root / "model_index.json").get("text_encoder_3") or []
    if "FunnelBaseModel" in third:
        t5_tokens = 1
    file = root / "tokenizer" / "tokenizer_config.json"
    length = _read_json(file).get("model_max_length") if file.is_file() else None
    return (length if isinstance(length, int) and length < 10_000 else _CLIP_TOKENS) + t5_tokens


def _count(tensors: Mapping[str, Any]) -> int:
    return sum(math.prod(entry["shape"]) for entry in tensors.values())


def _stored_bytes(tensors: Mapping[str, Any]) -> int:
    return sum(
        math.prod(entry["shape"]) * _BYTES.get(entry["dtype"], 4) for entry in tensors.values()
    )


def _folder(folder: Path) -> dict[str, Any]:
    return _tensors(folder) if folder.is_dir() else {}


def _tensors(folder: Path) -> dict[str, Any]:
    """Name, dtype and shape of every tensor, from the headers of the folder's safetensors."""
    files = sorted(folder.glob("*.safetensors"))
    full = [file for file in files if ".fp16" not in file.name]
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
