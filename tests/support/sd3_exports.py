"""Tiny SD3 pipelines on disk, and what is expected of their exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from atelier.config.schema import RunConfig
from atelier.policies.sd3.tiny import TinySD3Sizes, build_pipeline
from tests.support import exports
from tests.support.exports import (
    flipped_bit,
    nudged,
    renamed,
    rewrite,
    truncated,
    without_file,
    without_tensor,
)

ADAPTER, WEIGHTS = (
    "pytorch_lora_weights.safetensors",
    "transformer/diffusion_pytorch_model.safetensors",
)
ADAPTER_TENSORS = 2 * 15  # two layers of eight targets, one of them absent in the last
ADAPTER_CARD = ("license: apache-2.0", "library_name: diffusers", "load_lora_weights")
MERGED_CARD = ("library_name: diffusers", "with plain diffusers")
VERIFIED = ("30 tensors loaded",)
_QUERY = "transformer_blocks.0.attn.to_q.weight"


def save_base(folder: Path) -> Path:
    """Two layers, random weights, stored in fp16 as the embedded model is."""
    pipeline = build_pipeline(TinySD3Sizes(layers=2, heads=2, vae_channels=(8, 8, 8)))
    generator = torch.Generator().manual_seed(0)
    for parameter in pipeline.transformer.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(0.05 * noise)  # the output starts at zero: let it depend on the weights
    pipeline.to(torch.float16).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# base\n")
    return folder


def run_config(path: Path, trainable: str, **sections: Any) -> RunConfig:
    sections = {"evaluation": {"num_inference_steps": 4}, **sections}
    return exports.run_config("sd3", path, trainable, **sections)


def in_float16(folder: Path) -> RunConfig:
    guided = {"num_inference_steps": 4, "guidance_scale": 2.0}
    path = save_base(folder / "base")
    return run_config(path, "full", evaluation=guided, export={"dtype": "float16"})


WAYS = (in_float16,)


def without_alpha(path: Path) -> None:
    rewrite(path / ADAPTER, lambda _, metadata: metadata.pop("lora_adapter_metadata"))


# What is changed: of which format, and what the clean process then says.
SABOTAGE = {
    "adapter nudged": (nudged(ADAPTER, by=1e-4), "adapter", "weights are not those"),
    "adapter renamed": (renamed(ADAPTER, "transformer.", "model."), "adapter", "prefix"),
    "adapter without alpha": (without_alpha, "adapter", "alpha"),
    "adapter without a tensor": (without_tensor(ADAPTER), "adapter", "does not load"),
    "weight nudged": (nudged(WEIGHTS, _QUERY), "merged", "weights are not those"),
    "weight missing": (without_tensor(WEIGHTS, _QUERY), "merged", "does not load"),
    "bit flipped": (flipped_bit(WEIGHTS), "merged", "weights are not those"),
    "weights cut short": (truncated(WEIGHTS), "merged", "does not load"),
    "no autoencoder": (without_file("vae/config.json"), "merged", "does not load"),
}
