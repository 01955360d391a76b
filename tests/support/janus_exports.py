"""Tiny Janus checkpoints on disk, and what is expected of their exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from atelier.config.schema import RunConfig
from atelier.policies.janus.original_layout import to_original
from tests.support import exports
from tests.support.exports import nudged, renamed, truncated, without_file, without_tensor
from tests.support.random_janus import Sizes, build_model, build_processor

ADAPTER, WEIGHTS = "adapter_model.safetensors", "model.safetensors"
ADAPTER_TENSORS = 2 * 2 * 7  # two layers of seven targets
ADAPTER_CARD = (
    "license: mit",
    "library_name: peft",
    "PeftModel.from_pretrained(model",
    "100.0% of the likeliest tokens are the trainer's",
)
MERGED_CARD = ("library_name: transformers", "with plain transformers")
VERIFIED = ("28 tensors loaded", "log-probabilities of tokens within")


def save_base(
    folder: Path,
    sizes: Sizes | None = None,
    seed: int = 3,
    dtype: torch.dtype = torch.float32,
    shard: str = "1GB",
) -> Path:
    """A checkpoint as transformers saves it, with files beside it."""
    build_model(sizes, seed).to(dtype).save_pretrained(folder, max_shard_size=shard)
    build_processor(sizes).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# base\n")
    (folder / "LICENSE").write_text("licence")
    (folder / "pytorch_model.bin").write_bytes(b"the same weights as a pickle")
    (folder / ".gitattributes").write_text("hidden")
    return folder


def run_config(path: Path, trainable: str, **sections: Any) -> RunConfig:
    drawing = {"algorithm": {"kl": "k3"}, "evaluation": {"guidance_scale": 3.0}}
    return exports.run_config("janus", path, trainable, **{**drawing, **sections})


# Every way to train and to store ------------------------------------------------------------------


def small_shards(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base", shard="200KB"), "lora")


def tied_in_full(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base", Sizes(tied=True)), "full")


def trained_in_full(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base"), "full")


def introspecting(folder: Path) -> RunConfig:
    """The text head of its own is trained too."""
    return run_config(save_base(folder / "base"), "full", rollout={"kind": "introspect"})


def sixteen_bit_base(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base", dtype=torch.bfloat16), "lora")


def file_of_weights(folder: Path) -> RunConfig:
    layout = save_base(folder / "layout", Sizes(tied=True))
    torch.save(to_original(build_model(seed=9).state_dict()), folder / "start.pth")
    return run_config(folder / "start.pth", "full", policy={"layout": str(layout)})


def in_bfloat16(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base"), "full", export={"dtype": "bfloat16"})


WAYS = (
    small_shards,
    tied_in_full,
    trained_in_full,
    introspecting,
    sixteen_bit_base,
    file_of_weights,
    in_bfloat16,
)


# Sabotage -----------------------------------------------------------------------------------------


def facts(folder: Path, name: str = "config.json") -> dict[str, Any]:
    held: dict[str, Any] = json.loads((folder / name).read_text())
    return held


def change(folder: Path, name: str = "config.json", **values: Any) -> None:
    (folder / name).write_text(json.dumps({**facts(folder, name), **values}))


def other_alpha(path: Path) -> None:
    change(path, "adapter_config.json", lora_alpha=2 * exports.ALPHA)


def rounded_when_loaded(path: Path) -> None:
    change(path, dtype="bfloat16")


def without_marks(path: Path) -> None:
    change(path, "generation_config.json", generation_kwargs=None)


_BIAS = "model.vision_model.encoder.layers.0.mlp.fc1.bias"
# What is changed: of which format, and what the clean process then says.
SABOTAGE = {
    "adapter nudged": (nudged(ADAPTER, by=1e-4), "adapter", "weights are not those"),
    # peft loads it without a word, and adapts nothing.
    "adapter renamed": (renamed(ADAPTER, ".layers.", ".blocks."), "adapter", "weights are not"),
    "adapter with another alpha": (other_alpha, "adapter", "alpha"),
    "weight nudged": (nudged(WEIGHTS, _BIAS), "merged", "weights are not those"),
    "weight missing": (without_tensor(WEIGHTS, "lm_head.weight"), "merged", "does not load"),
    "weights cut short": (truncated(WEIGHTS), "merged", "does not load"),
    "rounded when loaded": (rounded_when_loaded, "merged", "weights are not those"),
    "no marks": (without_marks, "merged", "does not load and run with transformers"),
    "no tokenizer": (without_file("tokenizer.json"), "merged", "does not load"),
}
