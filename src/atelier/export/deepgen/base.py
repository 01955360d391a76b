"""The DeepGen model that was trained from: a directory, or a checkpoint over base models.

Names are those of published checkpoints: `transformer.` before the transformer's, the connector's
as they are.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor

from atelier.config.facts.deepgen import FOLDERS, is_deepgen, of_checkpoint
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.errors import ConfigError
from atelier.export.base import safetensors_of
from atelier.export.manifest import file_sha256
from atelier.export.pipeline import MODEL_INDEX, BasePipeline
from atelier.policies.deepgen import bridge_files
from atelier.policies.deepgen.bridge_files import write_config
from atelier.policies.deepgen.layout import Model, write_rest
from atelier.policies.deepgen.published import BRIDGE, TRANSFORMER
from atelier.policies.deepgen.source import VAE, Checkpoint
from atelier.policies.deepgen.template import FILE as TEMPLATE

WEIGHTS = "diffusion_pytorch_model.safetensors"
_SAFETENSORS = "*.safetensors"
_PROGRAMS = "*.py"  # a pipeline's own class, where it brings one


@dataclass(frozen=True)
class BaseDeepGen(BasePipeline):
    """A model directory, of which the transformer and maybe the connector are trained.

    Attributes:
        policy: where it is a file of weights; `directory` then is that of its SD3.5 pipeline.
    """

    policy: PolicyConfig | None = None

    family: ClassVar[str] = "deepgen"
    kind: ClassVar[str] = "model"
    weights_name: ClassVar[str] = WEIGHTS
    trained_part: ClassVar[str] = "transformer and connector"

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Raises ConfigError as `open` does."""
        if not of_checkpoint(config.policy):
            return super().of(config)
        checkpoint = Checkpoint(config.policy)
        return cls(config.policy.path, checkpoint.pipeline_directory, True, config.policy)

    @staticmethod
    def download(path: str, revision: str | None) -> Path:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(path, revision=revision))

    def require_kind(self) -> None:
        if not is_deepgen(self.directory):
            raise ConfigError(
                f"policy.path: {self.path} is no DeepGen model: it needs {', '.join(FOLDERS)}"
            )

    @property
    def task(self) -> str:
        return "text-to-image"

    @property
    def weights_folder(self) -> Path:
        return Path("transformer")

    def loaded_name(self, stored: str) -> str:
        return stored if stored.startswith(BRIDGE) else f"{TRANSFORMER}{stored}"

    def adaptable(self) -> Iterable[str]:
        """The transformer's: the connector has layers of like names."""
        return [name for name in self.tensor_shapes() if name.startswith(TRANSFORMER)]

    def require_loadable(self) -> None:
        """Raise ConfigError unless diffusers can put an adapter onto it."""
        if self.policy is not None:
            raise ConfigError(
                "export.formats: adapter goes onto a model's directory, and "
                f"{self.path} is a file of weights; use merged"
            )

    def copy_rest(self, target: Path, dtype: torch.dtype) -> None:
        """Every part as it is, but the weights of the transformer and the connector."""
        if self._checkpoint is not None:
            self._write_rest(self._checkpoint, target)
            return
        weights = set(self.weight_files())
        for folder in FOLDERS:
            shutil.copytree(
                self.directory / folder,
                target / folder,
                ignore=lambda at, names: [name for name in names if Path(at, name) in weights],
            )
        for file in (MODEL_INDEX, TEMPLATE):
            if (self.directory / file).is_file():
                shutil.copyfile(self.directory / file, target / file)
        for program in self.directory.glob(_PROGRAMS):
            shutil.copyfile(program, target / program.name)
        self.copy_licence(target)

    # Weights -----------------------------------------------------------------------------------

    def weight_files(self) -> list[Path]:
        bridge = self.directory / bridge_files.FOLDER / bridge_files.WEIGHTS
        if self._checkpoint is not None:  # where they will lie
            return [self._weights / WEIGHTS, bridge]
        return [*safetensors_of(self._weights, WEIGHTS, "transformer"), bridge]

    def names(self, file: Path) -> list[str]:
        return super().names(file) if self._checkpoint is None else [*self._given(file)]

    def tensors(self, file: Path) -> Iterator[tuple[str, Tensor]]:
        if self._checkpoint is None:
            yield from super().tensors(file)
        else:
            yield from self._given(file).items()

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        if self._checkpoint is None:
            return super().tensor_shapes()
        return {
            self.loaded_name(name): tuple(value.shape)
            for file in self.weight_files()
            for name, value in self._given(file).items()
        }

    def weights_sha256(self) -> str:
        """Of a checkpoint, also over its bases: the files that a part is taken from."""
        source = self._checkpoint
        if source is None:
            return super().weights_sha256()
        parts = (source.vlm_directory, source.pipeline_directory / VAE)
        files = source.all_files
        files += [one for part in parts for one in sorted(part.glob(_SAFETENSORS))]
        lines = "".join(f"{file.name} {file_sha256(file)}\n" for file in files)
        return hashlib.sha256(lines.encode()).hexdigest()

    @cached_property
    def _checkpoint(self) -> Checkpoint | None:
        return None if self.policy is None else Checkpoint(self.policy)

    def _given(self, file: Path) -> dict[str, Tensor]:
        """A checkpoint's weights that go into a file."""
        assert self._checkpoint is not None
        found = self._checkpoint.weights
        return found.transformer if file.name == WEIGHTS else found.bridge

    def _write_rest(self, source: Checkpoint, target: Path) -> None:
        """Of a checkpoint: its language model with the adapter merged, its bases' other parts."""
        with torch.device("meta"):
            transformer = SD3Transformer2DModel.from_config(source.transformer_config())
        model = Model(
            transformer,
            source.vae(),
            source.scheduler(),
            source.vlm(None),
            source.bridge(),
            source.tokenizer(),
            source.template(),
        )
        write_rest(model, target)
        write_config(model.bridge, target)
