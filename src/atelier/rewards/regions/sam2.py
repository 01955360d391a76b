"""Regions as published: automatic masks of SAM 2.1, and lines of text.

The package sam2 and its checkpoint are not among the requirements: they are looked for when the
first picture is counted.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image

from atelier.config.paths import from_root
from atelier.config.sections.regions import RegionsConfig
from atelier.data.pictures import opaque
from atelier.errors import ConfigError
from atelier.mmmg.regions import PUBLISHED, Box, Regions, merged
from atelier.rewards.regions.text import read_text
from atelier.rewards.scorers import ocr_engine

# As published; what is not named here is the package's default.
GENERATOR: dict[str, Any] = {
    "points_per_side": 32,
    "points_per_batch": 256,
    "pred_iou_thresh": 0.7,
    "stability_score_thresh": 0.95,
    "stability_score_offset": 0.7,
    "crop_n_layers": 1,
    "crop_n_points_downscale_factor": 2,
    "box_nms_thresh": 0.6,
    "min_mask_region_area": 0,
    "use_m2m": True,
}


class Sam2Counter:
    """Counts masks and lines of text; lengths in pixels as published, for 1024 a side."""

    def __init__(self, config: RegionsConfig, key: str) -> None:
        self._config = config
        self._key = key
        self._loaded: Any = None
        self._alone = threading.Lock()  # the generator keeps the picture that it looks at

    @property
    def version(self) -> str:
        return f"sam2-1/{self._config.model}/{ocr_engine.version(True)}"

    def weights(self) -> Sequence[Path]:
        return [self._checkpoint(), *ocr_engine.model_files(detect=True).values()]

    def count(self, image: Image) -> Regions:
        picture = opaque(image)
        with self._alone:
            masks = self._generator().generate(np.asarray(picture))
        return merged(mask_boxes(masks), read_text(picture), PUBLISHED)

    def _generator(self) -> Any:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _load(self) -> Any:
        checkpoint = self._checkpoint()
        if importlib.util.find_spec("sam2") is None:
            raise ConfigError(
                f"{self._key}.counter: sam2 needs the package sam2 (SAM-2 of facebookresearch) "
                "where the reward is scored; install it there, or use counter: classical"
            )
        from sam2.automatic_mask_generator import SAM2AutomaticMaskGenerator
        from sam2.build_sam import build_sam2

        model = build_sam2(
            self._config.model, str(checkpoint), device=self._device(), apply_postprocessing=False
        )
        return SAM2AutomaticMaskGenerator(model, **GENERATOR)

    def _checkpoint(self) -> Path:
        path = from_root(self._config.checkpoint or "")
        if not path.is_file():
            raise ConfigError(f"{self._key}.checkpoint: there is no file {self._config.checkpoint}")
        return path

    def _device(self) -> str:
        import torch

        found = torch.cuda.is_available()
        if self._config.device == "cuda" and not found:
            raise ConfigError(f"{self._key}.device: cuda, and this process sees no GPU; use cpu")
        return "cuda" if found and self._config.device != "cpu" else "cpu"


def mask_boxes(masks: Iterable[Mapping[str, Any]]) -> list[Box]:
    """The boxes of SAM's masks, which say left, top, width and height."""
    found: list[Box] = []
    for mask in masks:
        left, top, width, height = mask["bbox"]
        found.append((left, top, left + width, top + height))
    return found
