"""The Qwen-Image pipeline that was trained from: of its parts, the text encoder was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors import safe_open

from atelier.config.facts.qwen import loaded_name, pipeline_kind
from atelier.config.schema import RunConfig
from atelier.config.sections.policy_parts import Dtype
from atelier.export.base import safetensors_of
from atelier.export.clean_process.digests import lines_digest, tensor_line
from atelier.export.language.base import CONFIG, BaseLanguageModel
from atelier.export.language.own_files import copy_own_files, write_config
from atelier.export.pipeline import BasePipeline

TEXT_ENCODER = "text_encoder"
FROZEN_WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class BaseQwen(BasePipeline, BaseLanguageModel):
    """A pipeline directory.

    Attributes:
        whole: whether a merged export has the frozen parts, too, or leaves them where they are.
        guided: whether images are painted with guidance: its negative prompt is the base's.
        transformer_dtype, vae_dtype: of the frozen parts, as they are loaded.
    """

    whole: bool = False
    guided: bool = False
    transformer_dtype: Dtype = "float32"
    vae_dtype: Dtype = "float32"

    family: ClassVar[str] = "qwen"
    kind: ClassVar[str] = "pipeline"
    trained_part: ClassVar[str] = "text encoder"

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Raises ConfigError as `open` does."""
        return replace(
            super().of(config),
            whole=config.export.whole_pipeline,
            guided=config.evaluation.guidance_scale > 1,
            transformer_dtype=config.rollout.environment.dtype,
            vae_dtype=config.policy.vae.dtype,
        )

    def require_kind(self) -> None:
        pipeline_kind(self.directory)
        super().require_kind()

    @property
    def edits(self) -> bool:
        """Whether it edits source images."""
        return pipeline_kind(self.directory) == "edit"

    @property
    def task(self) -> str:
        return "image-to-image" if self.edits else "text-to-image"

    @property
    def weights_folder(self) -> Path:
        return Path(TEXT_ENCODER)

    def loaded_name(self, stored: str) -> str:
        return loaded_name(stored)

    @property
    def stays_beside(self) -> bool:
        return self.guided or not self.whole

    def copy_rest(self, target: Path, dtype: torch.dtype) -> None:
        """What belongs to the text encoder, or to the whole pipeline, and the licence."""
        if self.whole:
            self.copy_components(target)
        else:
            copy_own_files(self.directory / TEXT_ENCODER, target / TEXT_ENCODER)
        self.copy_licence(target)
        write_config(target / TEXT_ENCODER / CONFIG, self.config, dtype, self.is_tied)

    def frozen(self) -> Mapping[str, str]:
        return self._frozen

    @cached_property
    def _frozen(self) -> dict[str, str]:
        dtypes = {"transformer": self.transformer_dtype, "vae": self.vae_dtype}
        return {part: self._digest(part, dtype) for part, dtype in dtypes.items()}

    def _digest(self, part: str, dtype: Dtype) -> str:
        """Of a part's stored tensors, each in the dtype that it is loaded in."""
        held: torch.dtype = getattr(torch, dtype)
        lines = []
        for file in safetensors_of(self.directory / part, FROZEN_WEIGHTS, part):
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  (not a mapping)
                    tensor = opened.get_tensor(name)
                    is_real = tensor.is_floating_point()
                    lines.append(tensor_line(name, tensor.to(held) if is_real else tensor))
        return lines_digest(lines)
