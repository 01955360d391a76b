"""The Janus model that was trained from, in the layout of transformers.

It is a directory with weights of its own, or one whose configuration and tokenizer go with the
weights of another file (policy.layout and a `.pth` as policy.path). The image tokenizer's codebook
is exported as it is stored: only the trainer scales its rows, which changes no image.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from atelier.config.paths import from_root
from atelier.config.schema import PolicyConfig
from atelier.errors import ConfigError
from atelier.export.base import BASE_CARD, CARD, BaseModel
from atelier.export.janus.own_files import copy_own_files, write_config, write_generation_config
from atelier.export.manifest import file_sha256
from atelier.policies.janus.loading import read_weights
from atelier.policies.janus.original_layout import from_original, is_original

CONFIG = "config.json"
LANGUAGE_MODEL = "model.language_model."
EMBEDDING, HEAD = f"{LANGUAGE_MODEL}embed_tokens.weight", "lm_head.weight"
PICKLES = ("*.bin", "*.pth", "*.pt")


@dataclass(frozen=True)
class BaseJanus(BaseModel):
    """A model directory.

    Attributes:
        file: of weights that stand in place of the directory's own.
    """

    file: Path | None = None

    family: ClassVar[str] = "janus"
    kind: ClassVar[str] = "model"
    weights_name: ClassVar[str] = "model.safetensors"
    trained_part: ClassVar[str] = "weights"

    @classmethod
    def of(cls, policy: PolicyConfig) -> Self:
        """Raises ConfigError as `open` does."""
        if policy.layout is None:
            return super().of(policy)
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
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{self.path} is no model directory: {CONFIG}: {error}") from error
        if kind != "janus":
            raise ConfigError(
                f"{self.path} is no Janus in the layout of transformers: its {CONFIG} says "
                f"model_type {kind!r}"
            )

    @property
    def weights_folder(self) -> Path:
        return Path()

    def adaptable(self) -> Iterable[str]:
        """The language model's: the vision tower has layers of the same names."""
        return [name for name in self.tensor_shapes() if name.startswith(LANGUAGE_MODEL)]

    def tied(self) -> Mapping[str, str]:
        """The text head, where it is stored beside the embedding that it shares."""
        both = {HEAD, EMBEDDING} <= self.tensor_shapes().keys()
        return {HEAD: EMBEDDING} if both and self._is_tied else {}

    @cached_property
    def _is_tied(self) -> bool:
        """As transformers has it: a configuration that ties two different tensors is wrong."""
        if not self.config.get("tie_word_embeddings", True):
            return False
        found = self.stored(EMBEDDING, HEAD)
        return len(found) < 2 or torch.equal(found[EMBEDDING], found[HEAD])

    @cached_property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.directory / CONFIG).read_text(encoding="utf-8"))
        return config

    def copy_rest(self, target: Path, dtype: torch.dtype) -> None:
        """Every other file of the directory byte for byte, but for what would load it wrongly."""
        copy_own_files(self.directory, target)
        if (card := target / CARD).exists():
            card.rename(target / BASE_CARD)
        write_config(target / CONFIG, self.config, dtype, self._is_tied)
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
        return super().weights_sha256() if self.file is None else file_sha256(self.file)

    @cached_property
    def _given(self) -> dict[str, Tensor]:
        """The file's weights by their names in transformers; read when they are used."""
        assert self.file is not None
        found = read_weights(self.file)
        return from_original(found) if is_original(found) else found

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
