"""Rewards `clip_similarity` and `pick_score`: CLIP models in this process.

The cosine of an image's and its prompt's embeddings, or the model's logit (the cosine times its
learned scale) on one of the published scales.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from atelier.config.paths import from_root
from atelier.config.sections.rewards import ClipConfig, ClipSimilarityConfig, PickScoreConfig
from atelier.errors import ConfigError
from atelier.rewards.base import Direction, ScoreBatch, Scores
from atelier.rewards.scorers.judged import red_circle

if TYPE_CHECKING:
    from atelier.rewards.scorers.clip_model import ClipModel

LARGEST_SCALE = 100.0  # of a logit: where CLIP's training stops it
WEIGHTS = ("model.safetensors", "pytorch_model.bin")

# Name of a scale -> score of a cosine and of the model's logit.
SCALES: Mapping[str, Callable[[float, float], float]] = {
    "cosine": lambda cosine, logit: cosine,
    "logit_26": lambda cosine, logit: logit / 26,
    "logit_30": lambda cosine, logit: logit / 30,
    "logit_100": lambda cosine, logit: logit / 100,
    "mixgrpo": lambda cosine, logit: (logit - 18) / 8,
}


class ClipScorer:
    """A score of a CLIP model's cosine and logit. Details: both of them."""

    name: str
    direction: Direction = "higher_is_better"

    def __init__(self, config: ClipConfig, normalization: str, processor: str) -> None:
        self.config = config
        self._processor = processor
        self._scale = SCALES[normalization]
        self._loading = threading.Lock()
        self._model: ClipModel | None = None
        self.version = f"{config.path}/{normalization}/transformers-{version('transformers')}"
        self.value_range = self._scale(-1, -LARGEST_SCALE), self._scale(1, LARGEST_SCALE)

    def score(self, batch: ScoreBatch) -> Scores:
        found = self._loaded().compare(batch.images, batch.prompts)
        return Scores(
            self.name,
            [self._scale(*one) for one in found],
            [{"cosine": cosine, "logit": logit} for cosine, logit in found],
        )

    def weights(self) -> Sequence[Path]:
        """The file with the model's weights.

        Raises:
            ConfigError: it is not on this machine.
        """
        return [_weights_file(self.config, f"rewards.{self.name}")]

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A red circle for two prompts. It proves that the model loads and that its scores are in
        range; what they are depends on the checkpoint, which is the configuration's to choose."""
        low, high = self.value_range
        prompts = ["a red circle", "a blue square"]
        batch = ScoreBatch([red_circle(size=256)] * 2, prompts, [{}] * 2, [0, 1])
        return batch, [(low + high) / 2] * 2, (high - low) / 2

    def _loaded(self) -> ClipModel:
        from atelier.rewards.scorers.clip_model import ClipModel  # torch and transformers: seconds

        with self._loading:
            if self._model is None:
                self._model = ClipModel(
                    place(self.config.path),
                    place(self._processor),
                    self.config.revision,
                    self.config.device,
                    f"rewards.{self.name}",
                )
            return self._model


class ClipSimilarityScorer(ClipScorer):
    """CLIP's similarity of image and prompt."""

    name = "clip_similarity"

    def __init__(self, config: ClipSimilarityConfig) -> None:
        super().__init__(config, config.normalization, config.path)


class PickScoreScorer(ClipScorer):
    """PickScore: a CLIP-H that was trained on what people prefer."""

    name = "pick_score"

    def __init__(self, config: PickScoreConfig) -> None:
        super().__init__(config, config.normalization, config.processor)


def place(path: str) -> str:
    """A directory of this machine, relative to the repository; else a hub id as it is."""
    local = from_root(path)
    return str(local) if local.is_dir() else path


def _weights_file(config: ClipConfig, key: str) -> Path:
    for name in WEIGHTS:
        local = from_root(config.path) / name
        if local.is_file():
            return local
        if from_root(config.path).is_dir():
            continue
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(config.path, name, revision=config.revision)
        if isinstance(cached, str):
            return Path(cached)
    raise ConfigError(f"{key}.path: {config.path} has no {' or '.join(WEIGHTS)} on this machine")
