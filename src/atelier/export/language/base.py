"""A base whose trained part is a language model, in the layout of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch

from atelier.errors import ConfigError
from atelier.export.base import BaseModel
from atelier.tracking.run_directory import read_json_object

CONFIG = "config.json"
LANGUAGE_MODEL = "model.language_model."
EMBEDDING, HEAD = f"{LANGUAGE_MODEL}embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class BaseLanguageModel(BaseModel):
    """See the module. The configuration lies beside the weights."""

    weights_name: ClassVar[str] = "model.safetensors"

    @cached_property
    def config(self) -> dict[str, Any]:
        file = self.directory / self.weights_folder / CONFIG
        return read_json_object(file, ConfigError)

    def require_loadable(self) -> None:
        """Raise ConfigError unless transformers loads it, so that peft can put an adapter on it."""

    def adaptable(self) -> Iterable[str]:
        """The language model's: the vision tower has layers of the same names."""
        return [name for name in self.tensor_shapes() if name.startswith(LANGUAGE_MODEL)]

    def tied(self) -> Mapping[str, str]:
        """The text head, where it is stored beside the embedding that it shares."""
        both = {HEAD, EMBEDDING} <= self.tensor_shapes().keys()
        return {HEAD: EMBEDDING} if both and self.is_tied else {}

    @cached_property
    def is_tied(self) -> bool:
        """Whether the text head shares the embedding's weights. As transformers has it: a
        configuration that ties two different tensors is wrong."""
        if not self.config.get("tie_word_embeddings", True):
            return False
        found = self.stored(EMBEDDING, HEAD)
        return len(found) < 2 or torch.equal(found[EMBEDDING], found[HEAD])
