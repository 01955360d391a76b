"""The Janus model that was trained from, in the layout of transformers.

It is a directory with weights of its own, or one whose configuration and tokenizer go with the
weights of another file (policy.layout and a `.pth` as policy.path). The image tokenizer's codebook
is exported as it is stored: only the trainer scales its rows, which changes no image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from atelier.config.paths import from_root
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError
from atelier.export.base import BASE_CARD, CARD
from atelier.export.janus.generation_config import write_generation_config
from atelier.export.language.base import CONFIG, BaseLanguageModel
from atelier.export.language.own_files import copy_own_files, write_config
from atelier.export.manifest import file_sha256
from atelier.model_files import read_weights
from atelier.policies.janus.original_layout import in_transformers_layout
from atelier.weight_index import weight_files

PICKLES = ("*.bin", "*.pth", "*.pt")


@dataclass(frozen=True)
class BaseJanus(BaseLanguageModel):
    """A model directory.

    Attributes:
        file: of weights that stand in place of the directory's own.
    """

    file: Path | None = None

    family: ClassVar[str] = "janus"
    kind: ClassVar[str] = "model"
    trained_part: ClassVar[str] = "weights"

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Raises ConfigError as `open` does."""
        policy = config.policy
        if policy.layout is None:
            return super().of(config)
        layout = cls.open(policy.layout, policy.revision)
        return cls(policy.path, layout.directory, True, from_root(policy.path))

    @staticmethod
    def download(path: str, revision: str | None) -> Path:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(path, revision=revision, ignore_patterns=[*PICKLES]))

    def require_kind(self) -> None:
        """In the layout of transformers."""
        try:
            kind = self.config.get("model_type")
        except ConfigError as error:
            raise ConfigError(f"{self.path} is no model directory: {error}") from error
        if kind != "janus":
            raise ConfigError(
                f"{self.path} is no Janus in the layout of transformers: its {CONFIG} says "
                f"model_type {kind!r}"
            )

    @property
    def task(self) -> str:
        return "any-to-any"

    @property
    def weights_folder(self) -> Path:
        return Path()

    def require_loadable(self) -> None:
        if self.file is not None:
            raise ConfigError(
                "export.formats: adapter goes onto a model that transformers loads, and "
                f"{self.path} is a file of weights; use merged"
            )

    def copy_rest(self, target: Path, dtype: torch.dtype) -> None:
        """Every other file of the directory byte for byte, but for what would load it wrongly."""
        copy_own_files(self.directory, target)
        if (card := target / CARD).exists():
            card.rename(target / BASE_CARD)
        write_config(target / CONFIG, self.config, dtype, self.is_tied)
        write_generation_config(target)

    # Weights of another file -------------------------------------------------------------------

    def weight_files(self) -> list[Path]:
        """Where the file's weights go: as in the directory, if its own are safetensors."""
        if self.file is not None and not any(self.directory.glob("*.safetensors")):
            return [self.directory / self.weights_name]
        return super().weight_files()

    def tensors(self, file: Path) -> Iterator[tuple[str, Tensor]]:
        if self.file is None:
            yield from super().tensors(file)
        else:
            yield from ((name, self._given[name]) for name in self._places[file.name])

    def stored(self, *names: str) -> dict[str, Tensor]:
        if self.file is None:
            return super().stored(*names)
        return {name: self._given[name] for name in names if name in self._given}

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        if self.file is None:
            return super().tensor_shapes()
        return {name: tuple(tensor.shape) for name, tensor in self._given.items()}

    def weights_sha256(self) -> str:
        if self.file is None:
            return super().weights_sha256()
        files = weight_files(self.file)
        if len(files) == 1:
            return file_sha256(self.file)
        lines = "".join(f"{one.name} {file_sha256(one)}\n" for one in files)
        return hashlib.sha256(lines.encode()).hexdigest()

    @cached_property
    def _given(self) -> dict[str, Tensor]:
        """The file's weights by their names in transformers; read when they are used."""
        assert self.file is not None
        return in_transformers_layout(read_weights(self.file))

    @cached_property
    def _places(self) -> dict[str, list[str]]:
        """Which weight file holds which of them; what the directory has not is in its last one."""
        files = self.weight_files()
        places = {file.name: self.names(file) if file.exists() else [] for file in files}
        known = {name for names in places.values() for name in names}
        places[files[-1].name] += sorted(self._given.keys() - known)
        return {
            file: [name for name in names if name in self._given] for file, names in places.items()
        }
