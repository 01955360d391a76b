"""The pipeline that was trained from: a directory in diffusers' layout, without its classes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from atelier.errors import ConfigError
from atelier.export.base import BASE_CARD, CARD, TOP_LEVEL_FILES, BaseModel

TRANSFORMER = "transformer"
WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
MODEL_INDEX = "model_index.json"


@dataclass(frozen=True)
class BasePipeline(BaseModel):
    """A pipeline directory, of which the transformer is trained."""

    family: ClassVar[str] = "sd3"
    kind: ClassVar[str] = "pipeline"
    weights_name: ClassVar[str] = WEIGHTS
    trained_part: ClassVar[str] = "transformer"

    @staticmethod
    def download(path: str, revision: str | None) -> Path:
        from diffusers import DiffusionPipeline

        return Path(DiffusionPipeline.download(path, revision=revision))

    def require_kind(self) -> None:
        if not (self.directory / MODEL_INDEX).is_file() or not self.transformer.is_dir():
            raise ConfigError(
                f"policy.path: {self.path} is not a pipeline directory: it needs {MODEL_INDEX} and "
                f"{TRANSFORMER}/"
            )

    @property
    def weights_folder(self) -> Path:
        return Path(TRANSFORMER)

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

    def copy_rest(self, target: Path, dtype: torch.dtype) -> None:
        """Everything `from_pretrained` reads but the transformer's weights, and the licence."""
        weights = set(self.weight_files())
        for component in self.components():
            shutil.copytree(
                self.directory / component,
                target / component,
                ignore=lambda folder, names: [n for n in names if Path(folder, n) in weights],
            )
        shutil.copyfile(self.directory / MODEL_INDEX, target / MODEL_INDEX)
        for pattern in TOP_LEVEL_FILES:
            for file in self.directory.glob(pattern):
                shutil.copyfile(file, target / file.name)
        if (card := self.directory / CARD).exists():
            shutil.copyfile(card, target / BASE_CARD)

    def _index(self) -> dict[str, Any]:
        index: dict[str, Any] = json.loads(
            (self.directory / MODEL_INDEX).read_text(encoding="utf-8")
        )
        return index
