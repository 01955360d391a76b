"""A snapshot on disk: the model in the published layout, in float16."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import torch

from atelier.config.facts.connector_fit import require_fitting
from atelier.config.sections.policy import PolicyConfig
from atelier.policies.deepgen.layout import Model, write_model
from atelier.policies.deepgen.source import open_source
from atelier.policies.deepgen.transformer import masked
from atelier.policies.pretraining.snapshots import load_as_float32


def load_snapshot(folder: Path) -> Model:
    """Loaded as a policy loads it, in float32.

    Raises:
        ConfigError: it is no DeepGen, or its parts do not fit each other.
    """
    source = open_source(PolicyConfig(family="deepgen", path=str(folder)))
    model = Model(
        masked(source.transformer("float32")),
        source.vae(),
        source.scheduler(),
        source.vlm("float32"),
        source.bridge(),
        source.tokenizer(),
        source.template(),
    )
    require_fitting(model.bridge.shape, model.vlm.config.to_dict(), model.transformer.config)
    return model


def save_snapshot(model: Model, folder: Path) -> None:
    """Write float16 safetensors that load in float32."""
    stored = {
        name: copy.deepcopy(getattr(model, name)).cpu().half()
        for name in ("transformer", "vae", "vlm", "bridge")
    }
    write_model(replace(model, **stored), folder, torch.float16)
    load_as_float32(folder / "vlm")
