"""Images of embeddings by the frozen pipeline: the part of the world that a policy writes for.

Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from atelier.config.sections.policy_parts import VaeConfig
from atelier.config.sections.qwen import ROTARY_POSITIONS, TEXT_WINDOW, PresetName
from atelier.errors import ConfigError
from atelier.policies.grey_levels import as_grey_levels
from atelier.policies.qwen.areas import Areas, fitted
from atelier.policies.qwen.conditioning import Conditioned
from atelier.policies.qwen.frozen import freeze, weights_digest
from atelier.policies.qwen.negative import Negative
from atelier.policies.qwen.noise import latents
from atelier.policies.qwen.presets import scheduler_of
from atelier.policies.qwen.templates import reads_image

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampling:
    """Denoising steps, and true classifier-free guidance; 1 samples without it."""

    num_inference_steps: int
    guidance_scale: float = 1.0


@dataclass(frozen=True)
class Settings:
    """How a pipeline is run.

    Attributes:
        side: of square images in pixels; None: what the pipeline was made for.
        batch: images painted together.
        window: most tokens that reach the transformer.
    """

    side: int | None = None
    batch: int = 1
    window: int = TEXT_WINDOW
    preset: PresetName = "pipeline"
    areas: Areas = field(default_factory=Areas)
    vae: VaeConfig = field(default_factory=VaeConfig)


class Environment:
    """A pipeline of which nothing is trained.

    Args:
        pipeline: QwenImagePipeline or QwenImageEditPlusPipeline; its text encoder is not used, and
            may be None.
        device: where it paints; conditions may come from any other.

    Raises:
        ConfigError: images of that size, or so wide a window, are not for this pipeline.
    """

    def __init__(self, pipeline: Any, settings: Settings, device: torch.device | str) -> None:
        self.edits = reads_image(pipeline)
        self._pipeline = pipeline
        self._settings = settings
        self._device = torch.device(device)
        self.side = _side(pipeline, settings)
        _require_window(pipeline, self.side, settings, self.edits)
        self._transformer: Any = freeze(pipeline.transformer).to(self._device)
        vae: Any = freeze(pipeline.vae).to(self._device)
        vae.use_slicing, vae.use_tiling = settings.vae.slicing, settings.vae.tiling
        pipeline.scheduler = scheduler_of(settings.preset, pipeline.scheduler)
        pipeline.set_progress_bar_config(disable=True)
        self.digest = self.weights_digest()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image: height, width, channels."""
        return self.side, self.side, 3

    def weights_digest(self) -> str:
        """sha256 of the transformer's weights as they are now."""
        return weights_digest(self._transformer)

    def require_unchanged(self) -> None:
        """Raises RuntimeError where the transformer is not what it was when it was opened."""
        found = self.weights_digest()
        if found != self.digest:
            raise RuntimeError(
                f"the frozen transformer has changed: its sha256 was {self.digest}, is {found}"
            )

    def images(
        self,
        conditioned: Conditioned,
        keys: Sequence[int],
        sampling: Sampling,
        negative: Negative | None = None,
        sources: Sequence[Image.Image] | None = None,
    ) -> np.ndarray:
        """Images uint8 [B, H, W, 3], in the order of the conditions.

        Args:
            keys: one a row, of the noise it begins with.
            negative: what guidance leads away from; needed where there is any.
            sources: what is edited, RGB, one a row; for pipelines of edits.

        Raises:
            ValueError: something of what is needed is not there, or not for every row.
            Stopped: an image is no number.
        """
        self._require_all(conditioned, keys, sampling, negative, sources)
        guide = negative if sampling.guidance_scale > 1 else None
        painted = np.empty((len(conditioned), *self.shape), np.uint8)
        if sources is None:
            for rows in batches(conditioned.lengths, self._settings.batch):
                painted[rows] = self._from_words(conditioned, rows, keys, sampling, guide)
            return painted
        # A list of images would be several references of one edit.
        for row, source in enumerate(sources):
            painted[row] = self._run(
                conditioned.rows([row]),
                [keys[row]],
                sampling,
                None if guide is None else guide.of(source),
                image=source,
            )[0]
        return painted

    def _from_words(
        self,
        conditioned: Conditioned,
        rows: list[int],
        keys: Sequence[int],
        sampling: Sampling,
        negative: Negative | None,
    ) -> np.ndarray:
        """Images of some rows; in halves where the device has no memory for all of them."""
        without = None if negative is None else negative.of().repeated(len(rows))
        try:
            some = [keys[row] for row in rows]
            return self._run(conditioned.rows(rows), some, sampling, without)
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
        half = len(rows) // 2
        logger.warning(
            "no memory to paint %d images together, so %d are; "
            "set rollout.environment.micro_batch_size to that",
            len(rows),
            len(rows) - half,
        )
        parts = (rows[:-half], rows[-half:])
        return np.concatenate(
            [self._from_words(conditioned, part, keys, sampling, negative) for part in parts]
        )

    @torch.no_grad()
    def _run(
        self,
        conditioned: Conditioned,
        keys: Sequence[int],
        sampling: Sampling,
        negative: Conditioned | None,
        **image: Image.Image,
    ) -> np.ndarray:
        """One call of the pipeline, a row an image.

        num_images_per_prompt stays 1: with more, diffusers puts masks beside other rows than
        theirs.
        """
        dtype = self._transformer.dtype
        given = conditioned.to(self._device, dtype)
        settings: dict[str, Any] = {}
        if negative is not None:
            without = negative.to(self._device, dtype)
            settings = {
                "negative_prompt_embeds": without.embeds,
                "negative_prompt_embeds_mask": without.mask,
            }
        with self._settings.areas.applied(), torch.autocast(self._device.type, enabled=False):
            images = self._pipeline(
                **image,
                prompt_embeds=given.embeds,
                prompt_embeds_mask=given.mask,
                **settings,
                true_cfg_scale=sampling.guidance_scale,
                num_inference_steps=sampling.num_inference_steps,
                height=self.side,
                width=self.side,
                latents=self.noise(keys),
                max_sequence_length=TEXT_WINDOW,  # its default would cut what is behind 512
                output_type="np",
            ).images
        return _grey_levels(images)

    def noise(self, keys: Sequence[int]) -> torch.Tensor:
        """What images of these keys begin with, as the pipeline takes its `latents`: float32
        [B, tokens, channels]."""
        side = self.side // self._pipeline.vae_scale_factor
        return latents(keys, self._transformer.config.in_channels // 4, side, side)

    def _require_all(
        self,
        conditioned: Conditioned,
        keys: Sequence[int],
        sampling: Sampling,
        negative: Negative | None,
        sources: Sequence[Image.Image] | None,
    ) -> None:
        if len(keys) != len(conditioned):
            raise ValueError(f"{len(conditioned)} rows have {len(keys)} keys of noise")
        if (sources is not None) != self.edits:
            raise ValueError("edits have source images, and text to image has none")
        if sources is not None and len(sources) != len(conditioned):
            raise ValueError(f"{len(conditioned)} rows have {len(sources)} source images")
        if sampling.guidance_scale > 1 and negative is None:
            raise ValueError(
                "guidance needs a negative prompt: without one diffusers leaves it out"
            )
        longest = max(conditioned.lengths)
        if longest > self._settings.window:
            raise ValueError(
                f"a row of {longest} tokens, and {self._settings.window} reach the transformer"
            )


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Rows in batches of rows that are about equally long, the longest first: what has no memory
    fails at once."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _grey_levels(images: np.ndarray) -> np.ndarray:
    mend = (
        "set rollout.environment.dtype and policy.vae.dtype to bfloat16 or float32, which hold "
        "larger numbers than float16"
    )
    return as_grey_levels(torch.from_numpy(images), mend).round().to(torch.uint8).numpy()


def _side(pipeline: Any, settings: Settings) -> int:
    side = settings.side or pipeline.default_sample_size * pipeline.vae_scale_factor
    factor = 2 * pipeline.vae_scale_factor
    if side % factor:
        raise ConfigError(
            f"policy.resolution: {side} pixels; this model wants a multiple of {factor}"
        )
    return int(side)


def _require_window(pipeline: Any, side: int, settings: Settings, edits: bool) -> None:
    """The text's positions come after those of half an image."""
    largest = TEXT_WINDOW
    if edits:
        widest = max(side, *fitted((side, side), settings.areas.reference))
        largest = ROTARY_POSITIONS - widest // (4 * pipeline.vae_scale_factor)
    if settings.window > largest:
        raise ConfigError(
            f"rollout.conditioning.window: {settings.window}, and {largest} tokens reach this "
            "pipeline's transformer at most"
        )
