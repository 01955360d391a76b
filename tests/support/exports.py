"""What a run that trained a tiny checkpoint hands to the export, for any family.

A family's own part, <family>_exports.py: a checkpoint on disk (`save_base`), the configuration of a
run that trains it (`run_config`), and what is expected of its exports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene, SceneObject, to_dict
from atelier.export.card import Provenance
from atelier.export.families import family_of
from atelier.export.formats import ExportRequest
from atelier.policies.registry import load_policy
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import Checkpoint, LoopState, save_checkpoint
from atelier.training.engines import OptimizerState

SOURCE = {"source_scene": to_dict(Scene((SceneObject("square", "blue", (1, 1)),)))}
PROMPTS = [
    Prompt(0, 0, "a red circle", SOURCE),
    Prompt(1, 0, " a blue square and a red circle ", SOURCE),
]
RANK, ALPHA = 4, 16


def run_config(family: str, path: Path, trainable: str, **sections: Any) -> RunConfig:
    """Of a run that trains the checkpoint at `path`.

    Args:
        sections: what else the configuration says; of `policy`, beside what is said here.
    """
    policy = {
        "family": family,
        "path": str(path),
        "trainable": trainable,
        "lora": {"rank": RANK, "alpha": ALPHA},
        **sections.pop("policy", {}),
    }
    launch = {"device": "cpu", "threads": 1}
    return RunConfig.model_validate({"policy": policy, "launch": launch, **sections})


def trained(config: RunConfig, scale: float = 0.02) -> dict[str, Tensor]:
    """Trained tensors by the trainer's names: each value moved by noise of `scale`."""
    return dict(_trained(config.model_dump_json(), scale))


@cache
def _trained(text: str, scale: float) -> dict[str, Tensor]:
    policy = load_policy(RunConfig.model_validate_json(text), "cpu")
    generator = torch.Generator().manual_seed(1)
    return {
        name: value.detach() + scale * torch.randn(value.shape, generator=generator)
        for name, value in policy.trainable().items()
    }


def request_for(config: RunConfig, scale: float = 0.02) -> ExportRequest:
    """All an export is a function of."""
    family, tensors = family_of(config.policy.family), trained(config, scale)
    return ExportRequest(
        base=family.base.of(config),
        tensors=family.base_names(tensors),
        lora=config.policy.lora if config.policy.trainable == "lora" else None,
        config=config.export,
        reference=family.make_reference(config, tensors, PROMPTS, "cpu"),
        provenance=Provenance(recipe="tiny/test", seed=0),
    )


def save_trained(run: RunDirectory, tensors: Mapping[str, Tensor]) -> None:
    """A checkpoint of step 7 whose moving average they are."""
    save_checkpoint(
        run.checkpoints,
        Checkpoint(
            state=LoopState(7, 14, "", 0, 0),
            weights={name: torch.zeros_like(value) for name, value in tensors.items()},
            ema=dict(tensors),
            optimizer=OptimizerState(14, {}),
            rng={"torch": torch.get_rng_state()},
        ),
    )


def stored(folder: Path) -> dict[str, Tensor]:
    """All tensors of a directory's safetensors."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def rewrite(file: Path, change: Callable[[dict[str, Tensor], dict[str, str]], object]) -> None:
    """Change tensors and metadata of a safetensors file."""
    with safe_open(file, framework="pt") as opened:
        metadata = dict(opened.metadata() or {})
    tensors = load_file(file)
    change(tensors, metadata)
    save_file(tensors, file, metadata)


# Sabotage: a change of an exported directory, of which it has what the family says ---------------

Sabotage = Callable[[Path], object]


def nudged(file: str, name: str | None = None, by: float = 1e-3) -> Sabotage:
    """One value of one tensor, the first in the alphabet unless it is named."""
    return lambda path: rewrite(
        path / file, lambda tensors, _: tensors[name or min(tensors)].view(-1)[0].add_(by)
    )


def without_tensor(file: str, name: str | None = None) -> Sabotage:
    return lambda path: rewrite(path / file, lambda tensors, _: tensors.pop(name or min(tensors)))


def renamed(file: str, old: str, new: str) -> Sabotage:
    def change(tensors: dict[str, Tensor], _: dict[str, str]) -> None:
        for name in list(tensors):
            tensors[name.replace(old, new, 1)] = tensors.pop(name)

    return lambda path: rewrite(path / file, change)


def flipped_bit(file: str) -> Sabotage:
    def change(path: Path) -> None:
        data = bytearray((path / file).read_bytes())
        data[-100] ^= 0x10
        (path / file).write_bytes(data)

    return change


def truncated(file: str) -> Sabotage:
    return lambda path: (path / file).write_bytes((path / file).read_bytes()[:-64])


def without_file(file: str) -> Sabotage:
    return lambda path: (path / file).unlink()
