"""A connector's weights in a directory, and the connector that is made of weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from atelier.config.facts.files import read_json
from atelier.errors import ConfigError
from atelier.model_files import (
    require_all_weights,
    require_no_others,
    require_numbers,
    require_weights_of_kind,
    telling,
)
from atelier.policies.deepgen.connector import Bridge, Shape

FOLDER, WEIGHTS, CONFIG = "connector", "model.safetensors", "config.json"
_LAYER = "connector.layers."


def read_bridge(directory: Path) -> Bridge:
    """Of a model's directory, float32, as its files say.

    Raises:
        ConfigError: they cannot be read, or are no connector's.
    """
    folder = directory / FOLDER
    heads = heads_of(folder)
    with telling(f"{folder}: is no connector of a DeepGen model"):
        tensors = load_file(folder / WEIGHTS)
    return build_bridge(str(folder), tensors, heads)


def heads_of(folder: Path) -> int:
    """Of its attention, which no shape tells."""
    file = folder / CONFIG
    said = read_json(file).get("connector")
    heads = said.get("num_attention_heads") if isinstance(said, dict) else None
    if not isinstance(heads, int) or heads < 1:
        raise ConfigError(f"{file}: connector.num_attention_heads is {heads}; the published has 32")
    return heads


def build_bridge(where: str, tensors: Mapping[str, Tensor], heads: int) -> Bridge:
    """A connector with these weights, in float32.

    Raises:
        ConfigError: some are missing or too many, do not fit each other, or are no numbers.
    """
    shape = shape_of(where, tensors, heads)
    with torch.device("meta"):
        bridge = Bridge(shape)
    expected = bridge.state_dict()
    require_all_weights(where, expected.keys() - tensors.keys())
    require_no_others(where, tensors.keys() - expected.keys())
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            raise ConfigError(
                f"{where}: {name} has shape {list(value.shape)}, and by the others it would have "
                f"{list(expected[name].shape)}"
            )
    require_weights_of_kind(where, tensors, expected)
    held = {name: value.float() for name, value in tensors.items()}
    require_numbers(where, held)
    bridge.load_state_dict(held, assign=True)
    return bridge.requires_grad_(False).eval()


def shape_of(where: str, tensors: Mapping[str, Tensor], heads: int) -> Shape:
    """By the weights' shapes."""
    layers = {name.split(".")[2] for name in tensors if name.startswith(_LAYER)}
    try:
        queries = tensors["meta_queries"].shape
        hidden, states = tensors["projector_1.weight"].shape
        shape = Shape(
            states=states,
            queries=queries[0],
            query_width=queries[1],
            hidden_size=hidden,
            intermediate_size=tensors[f"{_LAYER}0.mlp.fc1.weight"].shape[0],
            num_hidden_layers=len(layers),
            num_attention_heads=heads,
            tokens=tensors["projector_3.weight"].shape[0],
            pooled=tensors["projector_2.weight"].shape[0],
        )
    except (KeyError, ValueError, IndexError) as error:
        raise ConfigError(f"{where}: no connector of a DeepGen model: {error!r}") from error
    if shape.hidden_size % heads:
        raise ConfigError(f"{where}: {heads} attention heads do not divide {shape.hidden_size}")
    return shape


def write_bridge(bridge: Bridge, directory: Path, dtype: torch.dtype = torch.float32) -> None:
    """Into a model's directory."""
    write_config(bridge, directory)
    held = {
        name: value.detach().to("cpu", dtype).contiguous()
        for name, value in bridge.state_dict().items()
    }
    save_file(held, directory / FOLDER / WEIGHTS, metadata={"format": "pt"})


def write_config(bridge: Bridge, directory: Path) -> None:
    """What its weights do not say."""
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(bridge.shape.config(), indent=2)
    (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")
