"""Settings of the frozen parts of a policy: its text encoders and its autoencoder."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from atelier.config.sections.base import NonNegativeFloat, Section, operational
from atelier.weight_index import WEIGHTS_INDEX

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def holds_weights_alone(path: str) -> bool:
    """Whether a path names a file of weights, of torch.save or safetensors, or an index of such
    files, which does not say what model it is."""
    return path.endswith((".pth", ".pt", ".bin", ".safetensors", WEIGHTS_INDEX))


class VaeConfig(Section):
    """Autoencoder that makes the images, the same for rollout and evaluation: rewards see them."""

    dtype: Dtype = Field("float32", description="Dtype the autoencoder is held and decodes in.")
    slicing: bool = Field(False, description="Decode one image at a time: less memory, slower.")
    tiling: bool = Field(
        False, description="Decode large images in overlapping tiles: less memory, other pixels."
    )


class TextConfig(Section):
    """Text encoders: loaded when a prompt is new, freed when all of a run's are encoded."""

    dtype: Dtype = Field("float32", description="Dtype the text encoders are held and compute in.")
    memory_gigabytes: NonNegativeFloat = operational(
        4.0, "Embeddings a process keeps in main memory; the least recently used go first."
    )
    disk_gigabytes: NonNegativeFloat = operational(
        0.0,
        "Embeddings kept in .atelier/embeddings for other processes and later runs; 0: none. "
        "The text encoders stay loaded where neither place holds all of a run's prompts.",
    )
