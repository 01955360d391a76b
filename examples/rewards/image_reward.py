"""ImageReward-v1.0 as a reward of its own: a class, and packages in an environment of their own.

    rewards:
      custom:
        image_reward:
          function: examples.rewards.image_reward:ImageReward
          placement: managed
          server: {environment: image_reward}

docs/reward-slots.md says how it runs. Importing this file imports none of those packages: the
trainer makes the scorer, too, for its direction, range and golden sample.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from atelier.errors import ConfigError
from atelier.rewards import Golden, ScoreBatch, Scores


class ImageReward:
    """How much people would prefer an image for its prompt: raw, about -2.3 to 2.

    Args:
        model: name of a published checkpoint, or a file with one.
        device: cpu, cuda or auto: a GPU where there is one.
    """

    name = "image_reward"
    direction = "higher_is_better"
    value_range = (-math.inf, math.inf)

    def __init__(self, model: str = "ImageReward-v1.0", device: str = "auto") -> None:
        self._name, self._device = model, device
        self._loading = threading.Lock()
        self._model: Any = None

    @property
    def version(self) -> str:
        return f"image-reward-1.5/{self._name}"

    def score(self, batch: ScoreBatch) -> Scores:
        """Raw scores.

        Raises:
            ConfigError: the package is not in this environment.
        """
        model = self._loaded()
        pairs = zip(batch.prompts, batch.images, strict=True)
        values = [float(model.score(prompt, image.convert("RGB"))) for prompt, image in pairs]
        return Scores(self.name, values)

    def weights(self) -> Sequence[Path]:
        """The checkpoint, where it is a file; a published one is named by the version."""
        file = Path(self._name)
        return [file] if file.is_file() else []

    def golden(self) -> Golden:
        """A grey square for a prompt about something else: a low score, whatever the checkpoint."""
        grey = Image.new("RGB", (256, 256), (128, 128, 128))
        return ScoreBatch([grey], ["a photo of two cats on a sofa"], [{}], [0]), [-2.0], 1.0

    def _loaded(self) -> Any:
        with self._loading:
            if self._model is None:
                try:
                    import ImageReward as package
                    import torch
                except ImportError as error:
                    raise ConfigError(
                        f"rewards.custom.{self.name}: {error}. ImageReward has an environment of "
                        "its own: set placement: managed and server.environment: image_reward"
                    ) from error
                device = self._device
                if device == "auto":
                    device = "cuda" if torch.cuda.is_available() else "cpu"
                self._model = package.load(self._name, device=device)
            return self._model
