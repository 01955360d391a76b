"""The pipeline that was trained from: a directory in diffusers' layout, without its classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import safe_open

from atelier.config.paths import from_root
from atelier.errors import ConfigError
from atelier.export.manifest import file_sha256

TRANSFORMER = "transformer"
WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
MODEL_INDEX = "model_index.json"


@dataclass(frozen=True)
class BasePipeline:
    """A pipeline directory; `path` is what the configuration called it (directory or hub id)."""

    path: str
    directory: Path

    @property
    def transformer(self) -> Path:
        return self.directory / TRANSFORMER

    @property
    def class_name(self) -> str:
        return str(self._index()["_class_name"])

    def components(self) -> list[str]:
        """Folders of the pipeline's parts, the transformer among them."""
        named = (name for name, value in self._index().items() if isinstance(value, list))
        return sorted(name for name in named if (self.directory / name).is_dir())

    def weight_files(self) -> list[Path]:
        """The transformer's safetensors: one file, or the shards its index names.

        Raises:
            ConfigError: neither is there (weights as pickles, or of a variant only).
        """
        if (single := self.transformer / WEIGHTS).exists():
            return [single]
        index = self.transformer / INDEX
        if not index.exists():
            raise ConfigError(
                f"policy.path: {self.transformer} holds neither {WEIGHTS} nor {INDEX}: "
                "export needs the base's transformer as safetensors"
            )
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [self.transformer / name for name in sorted(shards)]

    def tensors(self, file: Path) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor as stored) of one weight file."""
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (not a mapping)
                yield name, opened.get_tensor(name)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor of the transformer, read from the headers."""
        shapes = {}
        for file in self.weight_files():
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    shapes[name] = tuple(opened.get_slice(name).get_shape())
        return shapes

    def transformer_sha256(self) -> str:
        """One sha256 over the transformer's weight files: which base this is."""
        digest = hashlib.sha256()
        for file in self.weight_files():
            digest.update(f"{file.name} {file_sha256(file)}\n".encode())
        return digest.hexdigest()

    def licence(self) -> str | None:
        """The `license` of the base's model card, if it states one."""
        try:
            card = (self.directory / "README.md").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        parts = card.split("---\n", 2)
        if len(parts) < 3 or parts[0].strip():
            return None
        try:
            front = yaml.safe_load(parts[1])
        except yaml.YAMLError:
            return None
        licence = front.get("license") if isinstance(front, dict) else None
        return str(licence) if licence else None

    def _index(self) -> dict[str, Any]:
        index: dict[str, Any] = json.loads(
            (self.directory / MODEL_INDEX).read_text(encoding="utf-8")
        )
        return index


def open_base(path: str, revision: str | None = None) -> BasePipeline:
    """Find a base pipeline: a directory, else a hub id (from the local cache when offline).

    Args:
        path: directory (absolute, or relative to the repository) or hub id.
        revision: of a hub id, its commit, tag or branch.

    Raises:
        ConfigError: neither, or not a pipeline with a transformer.
    """
    return local_base(path) or _pipeline(path, _from_hub(path, revision))


def local_base(path: str) -> BasePipeline | None:
    """The pipeline directory at `path`, which may be relative to the repository; None: no such.

    Raises:
        ConfigError: a directory, but not a pipeline with a transformer.
    """
    for directory in (Path(path), from_root(path)):
        if directory.is_dir():
            return _pipeline(path, directory)
    return None


def _pipeline(path: str, directory: Path) -> BasePipeline:
    if not (directory / MODEL_INDEX).is_file() or not (directory / TRANSFORMER).is_dir():
        raise ConfigError(
            f"policy.path: {path} is not a pipeline directory: it needs {MODEL_INDEX} and "
            f"{TRANSFORMER}/"
        )
    return BasePipeline(path, directory.resolve())


def _from_hub(path: str, revision: str | None) -> Path:
    from diffusers import DiffusionPipeline

    try:
        return Path(DiffusionPipeline.download(path, revision=revision))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.path: {path} is neither a directory nor a pipeline of the hub that can be "
            f"reached from here: {error}"
        ) from error
