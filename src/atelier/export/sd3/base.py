"""The pipeline that was trained from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from atelier.export.pipeline import BasePipeline

WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class BaseSD3(BasePipeline):
    """A pipeline directory, of which the transformer is trained."""

    family: ClassVar[str] = "sd3"
    weights_name: ClassVar[str] = WEIGHTS
    trained_part: ClassVar[str] = "transformer"

    @property
    def task(self) -> str:
        return "text-to-image"

    @property
    def weights_folder(self) -> Path:
        return Path("transformer")

    def copy_rest(self, target: Path, dtype: torch.dtype) -> None:
        """Everything `from_pretrained` reads but the transformer's weights, and the licence."""
        self.copy_components(target)
        self.copy_licence(target)
