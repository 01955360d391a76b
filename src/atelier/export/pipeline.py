"""A base in diffusers' layout, one part of which is trained; without diffusers' classes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from atelier.errors import ConfigError
from atelier.export.base import BASE_CARD, CARD, TOP_LEVEL_FILES, BaseModel
from atelier.tracking.run_directory import read_json_object

MODEL_INDEX = "model_index.json"


@dataclass(frozen=True)
class BasePipeline(BaseModel):
    """See the module. The trained part is the folder `weights_folder`."""

    kind: ClassVar[str] = "pipeline"

    @staticmethod
    def download(path: str, revision: str | None) -> Path:
        from diffusers import DiffusionPipeline

        return Path(DiffusionPipeline.download(path, revision=revision))

    def require_kind(self) -> None:
        trained = self.directory / self.weights_folder
        if not (self.directory / MODEL_INDEX).is_file() or not trained.is_dir():
            raise ConfigError(
                f"policy.path: {self.path} is not a pipeline directory: it needs {MODEL_INDEX} and "
                f"{self.weights_folder}/"
            )

    @property
    def class_name(self) -> str:
        return str(self._index()["_class_name"])

    def components(self) -> list[str]:
        """Folders of the pipeline's parts, the trained one among them."""
        named = (name for name, value in self._index().items() if isinstance(value, list))
        return sorted(name for name in named if (self.directory / name).is_dir())

    def copy_components(self, target: Path) -> None:
        """Everything `from_pretrained` reads but the trained weights."""
        weights = set(self.weight_files())
        for component in self.components():
            shutil.copytree(
                self.directory / component,
                target / component,
                ignore=lambda folder, names: [n for n in names if Path(folder, n) in weights],
            )
        shutil.copyfile(self.directory / MODEL_INDEX, target / MODEL_INDEX)

    def copy_licence(self, target: Path) -> None:
        """With the base's own card."""
        for file in self._licences():
            shutil.copyfile(file, target / file.name)
        if (card := self.directory / CARD).exists():
            shutil.copyfile(card, target / BASE_CARD)

    def _licences(self) -> Iterator[Path]:
        for pattern in TOP_LEVEL_FILES:
            yield from self.directory.glob(pattern)

    def _index(self) -> dict[str, Any]:
        return read_json_object(self.directory / MODEL_INDEX, ConfigError)
