"""What the model can do: held-out words read by OCR, held-out shapes seen by the exact checker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atelier.config.sections.policy_parts import VaeConfig
from atelier.data.gold import check
from atelier.data.keys import key
from atelier.data.render import render_batch
from atelier.data.scenes import Kind, Scene, prompt, sample_scene
from atelier.policies.deepgen.inputs import Inputs, Reader
from atelier.policies.deepgen.layout import Model
from atelier.policies.deepgen.reading import fused_states
from atelier.policies.deepgen.transformer import velocity
from atelier.policies.flow.denoising import denoised, guided_velocity
from atelier.policies.flow.schedules import schedule_of
from atelier.policies.sd3.decoder import ImageDecoder
from atelier.policies.sd3.pretrain.reading import read_words, summary

KINDS: tuple[Kind, ...] = ("word", "shapes")
CHUNK = 256  # images painted together


@dataclass(frozen=True)
class Painted:
    """Images uint8 [N, H, W, 3], their prompts, and a word about each."""

    images: NDArray[np.uint8]
    prompts: list[str]
    notes: list[str]


class Exam:
    """Held-out scenes with fixed noise: `count` of words, and as many of shapes."""

    def __init__(self, model: Model, count: int, seed: int, executor: Executor) -> None:
        self._model = model
        self._executor = executor
        self.scenes = [_scene(kind, seed, index) for kind in KINDS for index in range(count)]
        self.prompts = [prompt(one) for one in self.scenes]
        self._count = count
        config: Any = model.transformer.config
        shape = (len(self.scenes), config.in_channels, config.sample_size, config.sample_size)
        self._noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        reader = Reader(model.tokenizer, model.template, model.vlm, model.bridge.shape.queries)
        self._inputs = reader.inputs(reader.drawings([*self.prompts, ""]))

    def renders(self) -> dict[str, float]:
        """Of true pictures: no model can be better."""
        return self.scores(render_batch(self.scenes))[0]

    def scores(self, images: NDArray[np.uint8]) -> tuple[dict[str, float], list[str]]:
        """Mean similarity and exact share of the words, share of facts and of pictures right in all
        of them; and what was read or seen of each image."""
        words, shapes = slice(self._count), slice(self._count, None)
        targets = [one.word.text for one in self.scenes[words] if one.word is not None]
        similarities, texts = read_words(self._executor, images[words], targets)
        pairs = zip(images[shapes], self.scenes[shapes], strict=True)
        seen = [check(image, scene).score for image, scene in pairs]
        found = {
            **summary(similarities),
            "facts": round(float(np.mean(seen)), 4),
            "right": round(float(np.mean([score == 1 for score in seen])), 4),
        }
        notes = [f"read: {text}" if text else "" for text in texts]
        return found, [*notes, *(f"facts: {score:.2f}" for score in seen)]

    @torch.no_grad()
    def paint(self, parts: Any, steps: int, guidance: float = 1.0) -> NDArray[np.uint8]:
        """Images [N, H, W, 3] by the Euler ODE of the scheduler.

        Args:
            parts: trainer.trained_parts of a model, or their averages.
        """
        device = next(parts.parameters()).device
        inputs, decoder = self._inputs.to(device), self._decoder(device)
        schedule = schedule_of(self._model.scheduler, steps, device)
        last = len(self.scenes)
        painted = []
        for start in range(0, last, CHUNK):
            index = torch.arange(start, min(start + CHUNK, last), device=device)
            told = _told(parts, inputs.rows(index))
            nothing = _told(parts, inputs.rows(index * 0 + last)) if guidance > 1 else None
            noise = self._noise[start : start + CHUNK].to(device)
            predict = partial(_velocity, parts["transformer"], told, nothing, guidance)
            painted.append(decoder.decode(denoised(noise, schedule, predict)).wait())
        return np.concatenate(painted)

    def _decoder(self, device: torch.device) -> ImageDecoder:
        return ImageDecoder(self._model.vae, VaeConfig(), device)

    def grid(self, images: NDArray[np.uint8], notes: Sequence[str], count: int) -> Painted:
        """Some of both kinds."""
        some = [*range(count // 2), *range(self._count, self._count + count // 2)]
        some = [index for index in some if index < len(self.prompts)]
        return Painted(
            images[some], [self.prompts[index] for index in some], [notes[index] for index in some]
        )


def _scene(kind: Kind, seed: int, index: int) -> Scene:
    rng = random.Random(key("tiny-deepgen heldout", kind, seed, index))
    return sample_scene(rng, kind, "heldout")


def _velocity(
    transformer: Any,
    told: tuple[Tensor, ...],
    nothing: tuple[Tensor, ...] | None,
    guidance: float,
    x: Tensor,
    timestep: Tensor,
) -> Tensor:
    timestep = timestep.expand(len(x))
    asked = velocity(transformer, x, timestep, *told)
    if nothing is None:
        return asked
    return guided_velocity(velocity(transformer, x, timestep, *nothing), asked, guidance)


def _told(parts: Any, inputs: Inputs) -> tuple[Tensor, ...]:
    """Tokens, pooled, mask."""
    states = fused_states(parts["vlm"], parts["bridge"].meta_queries, inputs)
    return (*parts["bridge"](states, inputs.mask), inputs.mask)
