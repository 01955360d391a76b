"""Tiny Qwen-Image pipelines on disk, and what is expected of their exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from atelier.config.schema import RunConfig
from tests.support import exports, random_qwen
from tests.support.exports import nudged, renamed, truncated, without_file, without_tensor
from tests.support.janus_exports import other_alpha, rounded_when_loaded

ADAPTER, WEIGHTS = "adapter_model.safetensors", "text_encoder/model.safetensors"
ADAPTER_TENSORS = 2 * 2 * 4  # two layers of four targets
ADAPTER_CARD = (
    "license: apache-2.0",
    "library_name: peft",
    "pipeline_tag: text-to-image",
    "PeftModel.from_pretrained(encoder",
    "with adapted.disable_adapter():",
    "100.0% of the likeliest tokens are the trainer's",
)
MERGED_CARD = ("library_name: diffusers", "with plain diffusers", "def write(encoder, tokenizer")
VERIFIED = ("16 tensors loaded", "log-probabilities of tokens within")
TOKENS = 12


def save_base(
    folder: Path,
    kind: random_qwen.Kind = "text",
    dtype: torch.dtype = torch.float32,
    shard: str = "1GB",
) -> Path:
    """A pipeline as diffusers saves it, with files beside it; its completions may end."""
    pipeline = random_qwen.build_pipeline(kind)
    with torch.no_grad():
        pipeline.text_encoder.lm_head.weight[random_qwen.END] *= 1.2
    pipeline.text_encoder.to(dtype)
    pipeline.save_pretrained(folder)
    pipeline.text_encoder.save_pretrained(folder / "text_encoder", max_shard_size=shard)
    if shard != "1GB":
        (folder / WEIGHTS).unlink()
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# base\n")
    (folder / "LICENSE").write_text("licence")
    return folder


def run_config(path: Path, trainable: str, **sections: Any) -> RunConfig:
    small = {"condition_side": random_qwen.SIDE, "reference_side": random_qwen.SIDE}
    rollout = {
        "num_inference_steps": 2,
        "completion": {"max_tokens": TOKENS},
        **sections.pop("rollout", {}),
    }
    rollout["environment"] = {**small, **rollout.get("environment", {})}
    own = {
        "policy": {"resolution": random_qwen.SIDE, **sections.pop("policy", {})},
        "rollout": rollout,
        "algorithm": {"kl": "k3"},
        "evaluation": {
            "num_inference_steps": 2,
            "guidance_scale": 2.0,
            "seed": 12,  # one of the completions ends before its limit
            **sections.pop("evaluation", {}),
        },
    }
    return exports.run_config("qwen", path, trainable, **own, **sections)


# Every way to train and to store ------------------------------------------------------------------


def trained_in_full(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base"), "full")


def edits_of_an_adapter(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base", "edit"), "lora", rollout={"kind": "edit"})


def whole_without_guidance(folder: Path) -> RunConfig:
    """Nothing of the base is needed any more."""
    return run_config(
        save_base(folder / "base"),
        "lora",
        export={"whole_pipeline": True},
        evaluation={"guidance_scale": 1.0},
    )


def small_shards(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base", shard="200KB"), "lora")


def sixteen_bit_base(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base", dtype=torch.bfloat16), "lora")


def painted_in_bfloat16(folder: Path) -> RunConfig:
    return run_config(
        save_base(folder / "base"), "lora", rollout={"environment": {"dtype": "bfloat16"}}
    )


def in_bfloat16(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base"), "full", export={"dtype": "bfloat16"})


WAYS = (
    trained_in_full,
    edits_of_an_adapter,
    whole_without_guidance,
    small_shards,
    sixteen_bit_base,
    painted_in_bfloat16,
    in_bfloat16,
)


# Sabotage -----------------------------------------------------------------------------------------


def rounded(path: Path) -> None:
    rounded_when_loaded(path / "text_encoder")


_BIAS = "visual.blocks.0.mlp.up_proj.bias"
# What is changed: of which format, and what the clean process then says.
SABOTAGE = {
    "adapter nudged": (nudged(ADAPTER, by=1e-4), "adapter", "weights are not those"),
    "adapter renamed": (renamed(ADAPTER, ".layers.", ".blocks."), "adapter", "weights are not"),
    "adapter with another alpha": (other_alpha, "adapter", "alpha"),
    "weight nudged": (nudged(WEIGHTS, _BIAS), "merged", "weights are not those"),
    "weight missing": (without_tensor(WEIGHTS, "lm_head.weight"), "merged", "does not load"),
    "weights cut short": (truncated(WEIGHTS), "merged", "does not load"),
    "rounded when loaded": (rounded, "merged", "weights are not those"),
    "no configuration": (without_file("text_encoder/config.json"), "merged", "does not load"),
}
