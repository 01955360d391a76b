"""What the model can do: held-out words through the plain pipeline call, read by OCR."""

from concurrent.futures import Executor
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline
from numpy.typing import NDArray

from atelier.policies.sd3.pretrain.autoencoder import round_trip
from atelier.policies.sd3.pretrain.images import Rendered
from atelier.policies.sd3.pretrain.reading import read_words, summary

# Schedules worth knowing: (shift, shift_terminal). Tried on every snapshot, at no training cost.
SCHEDULES = ((1.0, None), (1.0, 0.1), (1.5, None), (1.5, 0.1), (2.0, None), (2.0, 0.1), (3.0, None))


class WordTest:
    """Held-out words with fixed noise; similarity and exact match of images made from them."""

    def __init__(
        self,
        pipeline: StableDiffusion3Pipeline,
        heldout: Rendered,
        executor: Executor,
        seed: int,
    ) -> None:
        self.pipeline = pipeline
        self._executor = executor
        self._renders, self.prompts, self._words = heldout
        config = pipeline.transformer.config
        shape = (len(self.prompts), config.in_channels, config.sample_size, config.sample_size)
        self._noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))

    def round_trip(self) -> dict[str, float]:
        """True renders after the autoencoder's round trip: no transformer can be better."""
        images = torch.from_numpy(self._renders).to(self.pipeline.device)
        return summary(self.read(round_trip(self.pipeline.vae, images).cpu().numpy())[0])

    def generate(self, steps: int, guidance_scale: float = 1.0) -> NDArray[np.uint8]:
        """Images uint8 [N, H, W, 3] by the pipeline itself; guidance 1 means none."""
        output = self.pipeline(
            self.prompts,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            latents=self._noise.to(self.pipeline.device),
            output_type="np",
        )
        return (output.images * 255).round().astype(np.uint8)

    def read(self, images: NDArray[np.uint8]) -> tuple[list[float], list[str]]:
        """Similarities and recognised texts."""
        return read_words(self._executor, images, self._words)

    def schedules(self, steps: int) -> list[dict[str, Any]]:
        """The same noise under other sigma schedules, and with guidance 3 under the saved one."""
        saved, rows = self.pipeline.scheduler, []
        try:
            for shift, terminal in SCHEDULES:
                self.pipeline.scheduler = FlowMatchEulerDiscreteScheduler(
                    shift=shift, shift_terminal=terminal
                )
                scores = self.read(self.generate(steps))[0]
                rows.append({"shift": shift, "shift_terminal": terminal, **summary(scores)})
        finally:
            self.pipeline.scheduler = saved
        rows.append({"guidance_scale": 3.0, **summary(self.read(self.generate(steps, 3.0))[0])})
        return rows
