"""A model written in the published layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, SD3Transformer2DModel
from torch import nn

from atelier.config.facts.deepgen import CLASS
from atelier.policies.deepgen.bridge_files import write_bridge
from atelier.policies.deepgen.connector import Bridge
from atelier.policies.deepgen.source import SCHEDULER, TOKENIZER, TRANSFORMER, VAE, VLM
from atelier.policies.deepgen.template import Template, write_template

INDEX = {
    "_class_name": CLASS,
    SCHEDULER: ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    TRANSFORMER: ["diffusers", "SD3Transformer2DModel"],
    VAE: ["diffusers", "AutoencoderKL"],
}


@dataclass(frozen=True)
class Model:
    """All parts."""

    transformer: SD3Transformer2DModel
    vae: AutoencoderKL
    scheduler: Any
    vlm: Any
    bridge: Bridge
    tokenizer: Any
    template: Template

    def modules(self) -> dict[str, nn.Module]:
        """By the names of their folders."""
        parts = {TRANSFORMER: self.transformer, VAE: self.vae, VLM: self.vlm}
        return {**parts, "connector": self.bridge}


def write_model(model: Model, directory: Path, dtype: torch.dtype = torch.float32) -> None:
    """All of it.

    Args:
        dtype: of the connector's weights; the other parts are written as they are held.
    """
    write_rest(model, directory)
    model.transformer.save_pretrained(directory / TRANSFORMER)
    write_bridge(model.bridge, directory, dtype)


def write_rest(model: Model, directory: Path) -> None:
    """All but the weights of the transformer and the connector."""
    directory.mkdir(parents=True, exist_ok=True)
    model.transformer.save_config(directory / TRANSFORMER)
    model.vae.save_pretrained(directory / VAE)
    model.scheduler.save_pretrained(directory / SCHEDULER)
    model.vlm.save_pretrained(directory / VLM)
    model.tokenizer.save_pretrained(directory / TOKENIZER)
    write_template(model.template, directory)
    (directory / "model_index.json").write_text(f"{json.dumps(INDEX, indent=2)}\n")
