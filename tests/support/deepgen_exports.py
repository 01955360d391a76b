"""Tiny DeepGen models on disk, and what is expected of their exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.policies.deepgen.source import open_source
from tests.support import exports, random_deepgen
from tests.support.exports import nudged, renamed, truncated, without_file, without_tensor
from tests.support.sd3_exports import without_alpha

ADAPTER, WEIGHTS = (
    "pytorch_lora_weights.safetensors",
    "transformer/diffusion_pytorch_model.safetensors",
)
MORE_WEIGHTS = ("connector/model.safetensors",)
ADAPTER_TENSORS = 2 * 15  # two layers of eight targets, one of them absent in the last
ADAPTER_CARD = (
    "license: apache-2.0",
    "library_name: diffusers",
    'parts["transformer"].load_lora_adapter(',
    "def translate(parts, states)",
)
MERGED_CARD = (
    "library_name: diffusers",
    "def read(parts, prompt, source=None)",
    "against = translate(",
)
VERIFIED = ("30 tensors loaded",)
_QUERY = "transformer_blocks.0.attn.to_q.weight"


def save_base(folder: Path) -> Path:
    """A model's directory, with files beside it."""
    random_deepgen.save(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# base\n")
    (folder / "LICENSE").write_text("licence")
    (folder / "deepgen_pipeline.py").write_text("# a pipeline of its own\n")
    return folder


def run_config(path: Path, trainable: str, **sections: Any) -> RunConfig:
    """`full` is what of this family is trained in full."""
    evaluation = {"num_inference_steps": 3, "guidance_scale": 2.0, **sections.pop("evaluation", {})}
    part = "dit" if trainable == "full" else trainable
    return exports.run_config("deepgen", path, part, evaluation=evaluation, **sections)


# Every way to train and to store ------------------------------------------------------------------


def with_the_connector(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base"), "dit_connector")


def without_guidance(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base"), "full", evaluation={"guidance_scale": 1.0})


def edits(folder: Path) -> RunConfig:
    return run_config(save_base(folder / "base"), "lora", rollout={"kind": "edit"})


def read_together(folder: Path) -> RunConfig:
    published = {"connector": {"padding": "maskless"}}
    return run_config(save_base(folder / "base"), "full", policy=published)


def in_bfloat16(folder: Path) -> RunConfig:
    path = save_base(folder / "base")
    return run_config(path, "full", export={"dtype": "bfloat16", "min_update_survival": 0.5})


WAYS = (with_the_connector, without_guidance, edits, read_together, in_bfloat16)


def sft_state(base: Path) -> dict[str, Tensor]:
    """A checkpoint of fine-tuning: what the base has, in bfloat16 and by a wrapper's names, with an
    adapter of the language model."""
    source = open_source(PolicyConfig(family="deepgen", path=str(base)))
    state = {
        f"module.transformer.{name}": value.bfloat16()
        for name, value in source.transformer("float32").state_dict().items()
    }
    state |= {
        f"module.{name}": one.bfloat16() for name, one in source.bridge().state_dict().items()
    }
    words = len(source.vlm("float32").lm_head.weight)
    shapes = {"A": (2, random_deepgen.SIZES.width), "B": (words, 2)}
    for side, shape in shapes.items():
        state[f"module.lmm.lm_head.lora_{side}.default.weight"] = torch.randn(shape)
    return state


# What is changed: of which format, and what the clean process then says.
SABOTAGE = {
    "adapter nudged": (nudged(ADAPTER, by=1e-4), "adapter", "weights are not those"),
    "adapter renamed": (renamed(ADAPTER, "transformer.", "model."), "adapter", "prefix"),
    "adapter without alpha": (without_alpha, "adapter", "alpha"),
    "weight nudged": (nudged(WEIGHTS, _QUERY), "merged", "weights are not those"),
    "connector nudged": (nudged(MORE_WEIGHTS[0]), "merged", "weights are not those"),
    "weight missing": (without_tensor(WEIGHTS, _QUERY), "merged", "does not load"),
    "weights cut short": (truncated(WEIGHTS), "merged", "does not load"),
    "no template": (without_file("prompt_template.json"), "merged", "does not load"),
    "another language model": (
        nudged("vlm/model.safetensors", "model.layers.0.mlp.down_proj.weight", by=50.0),
        "merged",
        "images differ from the trainer's",
    ),
}
