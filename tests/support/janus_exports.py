"""Tiny Janus checkpoints on disk, and what a run that trained them would hand to the export."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.export.card import Provenance
from atelier.export.families import family_of
from atelier.export.formats import ExportRequest
from atelier.policies.janus.policy import JanusPolicy
from tests.support.random_janus import Sizes, build_model, build_processor

PROMPTS = [Prompt(0, 0, "a red circle"), Prompt(1, 0, " a blue square and a red circle ")]
RANK, ALPHA = 4, 16


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
    """Of a run that trains the checkpoint at `path`."""
    policy = {
        "family": "janus",
        "path": str(path),
        "trainable": trainable,
        "lora": {"rank": RANK, "alpha": ALPHA},
        **sections.pop("policy", {}),
    }
    return RunConfig.model_validate(
        {
            "policy": policy,
            "algorithm": {"kl": "k3"},
            "evaluation": {"guidance_scale": 3.0},
            "launch": {"device": "cpu", "threads": 1},
            **sections,
        }
    )


def trained(config: RunConfig, scale: float = 0.02) -> dict[str, Tensor]:
    """Trained tensors by the trainer's names: each value moved by noise of `scale`."""
    return dict(_trained(config.model_dump_json(), scale))


@cache
def _trained(text: str, scale: float) -> dict[str, Tensor]:
    config = RunConfig.model_validate_json(text)
    policy = JanusPolicy.load(config, "cpu")
    generator = torch.Generator().manual_seed(1)
    return {
        name: value.detach() + scale * torch.randn(value.shape, generator=generator)
        for name, value in policy.trainable().items()
    }


def request_for(config: RunConfig, scale: float = 0.02) -> ExportRequest:
    """All an export is a function of."""
    family, tensors = family_of("janus"), trained(config, scale)
    return ExportRequest(
        base=family.base_of(config.policy),
        tensors=family.base_names(tensors),
        lora=config.policy.lora if config.policy.trainable == "lora" else None,
        config=config.export,
        reference=family.make_reference(config, tensors, PROMPTS, "cpu"),
        provenance=Provenance(recipe="tiny/test", seed=0),
    )


def stored(folder: Path) -> dict[str, Tensor]:
    """All tensors of a directory's safetensors."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}
