"""A DeepGen 1.0 of the published shapes with random weights, as a directory that recipes can name.

    python -m benchmarks.deepgen_shape FOLDER           # 2.2 B that paint, 3.8 B that read
    python -m benchmarks.deepgen_shape FOLDER --size short   # they read by 7 layers of 36
    python -m benchmarks.deepgen_shape FOLDER --size small   # for a CPU

The tokens are the embedded tokenizer's, a cut of the published one; the vocabulary is of the
published size. On the meta device its parts count parameters (config/facts/known_deepgen.py).

Source: DeepGen-RL; Qwen2.5-VL-3B-Instruct's published configuration.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import nn

from atelier.config.facts.connector_fit import chosen_layers
from atelier.policies.deepgen.connector import Bridge
from atelier.policies.deepgen.connector import Shape as BridgeShape
from atelier.policies.deepgen.layout import Model, write_model
from atelier.policies.deepgen.template import Template
from atelier.policies.qwen.tiny.tokenizer import load_tokenizer
from benchmarks.qwen_shape import SHAPES as QWEN_SHAPES
from benchmarks.qwen_shape import TOKENIZER, QwenShape, build_encoder
from benchmarks.sd3_shape import SHAPES as SD3_SHAPES
from benchmarks.sd3_shape import Shape, build_transformer, build_vae


@dataclass(frozen=True)
class Size:
    """What paints, what reads, and how wide the connector between them is."""

    painter: Shape
    reader: QwenShape
    bridge: BridgeShape


def _size(painter: Shape, reader: QwenShape, bridge: BridgeShape) -> Size:
    states = len(chosen_layers(reader.layers)) * reader.width
    ends = {"tokens": painter.text_width, "pooled": sum(painter.clip_widths)}
    return Size(painter, reader, replace(bridge, states=states, query_width=reader.width, **ends))


PUBLISHED = _size(SD3_SHAPES["medium"], QWEN_SHAPES["3b"], BridgeShape())
SIZES = {
    "published": PUBLISHED,
    "short": _size(PUBLISHED.painter, replace(PUBLISHED.reader, layers=7), PUBLISHED.bridge),
    "small": _size(SD3_SHAPES["small"], QWEN_SHAPES["small"], BridgeShape(0, 8, 0, 64, 128, 2, 2)),
}


def build_vlm(size: Size = PUBLISHED) -> nn.Module:
    """Text head and embedding are one."""
    return build_encoder(size.reader, load_tokenizer(TOKENIZER))


def build_bridge(size: Size = PUBLISHED) -> Bridge:
    """Unlike a new one it says something, and of every prompt something else."""
    bridge = Bridge(size.bridge)
    for projector in (bridge.projector_2, bridge.projector_3):
        nn.init.normal_(projector.weight, std=size.bridge.hidden_size**-0.5)
    return bridge


def write_deepgen(size: Size, folder: Path) -> None:
    """In bfloat16, built on a GPU if there is one."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        parts = {
            "transformer": build_transformer(size.painter),
            "vae": build_vae(size.painter),
            "vlm": build_vlm(size),
            "bridge": build_bridge(size),
        }
    for part in parts.values():
        part.to("cpu", torch.bfloat16).eval()
    others = {
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
        "tokenizer": load_tokenizer(TOKENIZER),
        "template": Template(),
    }
    write_model(Model(**parts, **others), folder, torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=SIZES, default="published")
    arguments = parser.parse_args()
    write_deepgen(SIZES[arguments.size], arguments.folder)


if __name__ == "__main__":
    main()
