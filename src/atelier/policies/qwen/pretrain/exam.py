"""How much a completion matters: pictures by the writer's own completions, by none, by those of
other prompts, and by the true words.

Everything that comes before the picture is the trainer's own: prompts, completions drawn at
temperature 1, conditions, noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from atelier.config.sections.completion import CompletionConfig
from atelier.data.keys import key
from atelier.data.riddles import riddle
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.conditioning import Conditioned, Conditioning
from atelier.policies.qwen.environment import Environment, Sampling, Settings
from atelier.policies.qwen.generation import write, writing_of
from atelier.policies.qwen.inputs import inputs_of
from atelier.policies.qwen.noise import latents
from atelier.policies.qwen.presets import PRESETS
from atelier.policies.qwen.pretrain.autoencoder import decode, encode
from atelier.policies.qwen.pretrain.painter import paint
from atelier.policies.qwen.pretrain.words import EDIT_FRAMES, FRAMES, bare
from atelier.policies.qwen.pretrain.world import Cases, make_cases, right
from atelier.policies.qwen.templates import stock
from atelier.policies.qwen.tiny.parts import AREAS, PRESET, SIDE, Kind

MAX_TOKENS = 48  # of a completion
WINDOW = 256
BATCH = 256

WAYS = ("own", "none", "shuffled", "true")
# What a pipeline has to reach: the share of right pictures, from and to.
GATE = {"own": (0.4, 0.7), "none": (0.0, 0.2), "shuffled": (0.0, 0.2), "true": (0.8, 1.0)}


def failures(found: dict[str, float]) -> list[str]:
    """Which of the gate's demands are not met, in words."""
    return [
        f"{way}: {found[way]:.3f}, and {low} to {high} are wanted"
        for way, (low, high) in GATE.items()
        if not low <= found[way] <= high
    ]


@dataclass(frozen=True)
class Written:
    """Completions to the exam's prompts, in tokens and in words."""

    tokens: list[list[int]]
    texts: list[str]


class Exam:
    """Held-out prompts in riddle wording, always with the same noise.

    Args:
        pipeline: whose tokenizer, language model and, later, painter are examined.
        level: steps that an edit is worth.
    """

    def __init__(
        self, pipeline: Any, kind: Kind, count: int, seed: int, executor: Executor, level: int = 1
    ) -> None:
        levels = {level: 1.0}
        self.cases: Cases = make_cases(executor, kind, count, "heldout", seed, levels)
        self.riddles = [riddle(one) for one in self.cases.plain]
        self.keys = [key("tiny-qwen exam", seed, index) for index in range(count)]
        self._pipeline, self._executor = pipeline, executor
        self._chat = Chat(pipeline, stock(pipeline), AREAS)
        self._conditioning = Conditioning(self._chat, WINDOW)
        self._frames = EDIT_FRAMES if kind == "edit" else FRAMES
        sources = self.cases.sources
        self.sources = None if sources is None else [Image.fromarray(one) for one in sources]
        self._prompts = self._asked(self.riddles)

    def _asked(self, words: Sequence[str]) -> list[ChatPrompt]:
        if self.sources is None:
            return [self._chat.words(one) for one in words]
        return [self._chat.words(*both) for both in zip(words, self.sources, strict=True)]

    def written(self, encoder: Any) -> Written:
        """The encoder's own completions at temperature 1."""
        config = CompletionConfig(max_tokens=MAX_TOKENS)
        vocabulary = encoder.model.language_model.embed_tokens.num_embeddings
        writing, device = writing_of(config, self._chat, vocabulary), encoder.device
        found: list[list[int]] = []
        for rows in _batches(len(self.keys)):
            inputs = inputs_of(self._chat, self._prompts[rows], side="left", device=device)
            found += write(encoder, inputs, self.keys[rows], writing).own()
        return Written(found, [self._chat.text(one) for one in found])

    def right_words(self, written: Written) -> float:
        """The share of completions that hold the plain words."""
        pairs = zip(written.texts, self.cases.plain, strict=True)
        return sum(bare(one, self._frames) == plain for one, plain in pairs) / len(self.keys)

    def ways(self, encoder: Any, written: Written) -> dict[str, Conditioned]:
        """Conditions by way."""
        own = written.tokens
        shuffled = [*own[1:], *own[:1]]
        true = [self._chat.tokenizer(one)["input_ids"] for one in self.cases.plain]
        said = {"own": own, "none": None, "shuffled": shuffled, "true": true}
        return {way: self._conditions(encoder, said[way]) for way in WAYS}

    def _conditions(self, encoder: Any, written: list[list[int]] | None) -> Conditioned:
        parts = [
            self._conditioning(
                encoder, self._prompts[rows], None if written is None else written[rows]
            )
            for rows in _batches(len(self.keys))
        ]
        width = max(max(one.lengths) for one in parts)
        embeds, masks = (
            torch.cat([_widened(getattr(one, name), width) for one in parts])
            for name in ("embeds", "mask")
        )
        return Conditioned(embeds, masks, tuple(n for one in parts for n in one.lengths))

    def painted(self, transformer: Any, given: Conditioned) -> NDArray[np.uint8]:
        """Images by this transformer, many at once."""
        pipeline, device = self._pipeline, given.embeds.device
        channels = pipeline.vae.config.z_dim
        side = SIDE // pipeline.vae_scale_factor
        noise = latents(self.keys, channels, side, side).to(device)
        source = None
        if self.cases.sources is not None:
            source = encode(pipeline.vae, torch.from_numpy(self.cases.sources).to(device)).float()
        images = [
            decode(
                pipeline.vae,
                paint(
                    transformer,
                    pipeline.scheduler,
                    noise[rows],
                    given.embeds[rows],
                    given.mask[rows],
                    None if source is None else source[rows],
                ),
            )
            for rows in _batches(len(self.keys))
        ]
        return torch.cat(images).cpu().numpy()

    def painted_by_pipeline(self, given: Conditioned) -> NDArray[np.uint8]:
        """Images by the plain pipeline, as the trainer has them made."""
        settings = Settings(side=SIDE, batch=32, window=WINDOW, areas=AREAS)
        environment = Environment(self._pipeline, settings, given.embeds.device)
        preset = PRESETS[PRESET]
        sampling = Sampling(preset.num_inference_steps, preset.guidance_scale)
        return environment.images(given, self.keys, sampling, sources=self.sources)

    def scores(
        self,
        ways: dict[str, Conditioned],
        painting: Callable[[Conditioned], NDArray[np.uint8]],
    ) -> tuple[dict[str, float], NDArray[np.uint8], list[bool]]:
        """The share of right pictures by way; pictures by own completions, and whether each is
        right."""
        found, shown, good = {}, None, []
        for way in WAYS:
            images = painting(ways[way])
            held = right(images, self.cases.truths, self._executor)
            found[way] = round(sum(held) / len(held), 4)
            if way == "own":
                shown, good = images, held
        assert shown is not None
        return found, shown, good

    def round_trip(self) -> float:
        """The share of true pictures that are right after the autoencoder: no transformer can be
        better."""
        vae = self._pipeline.vae
        images = torch.from_numpy(self.cases.images).to(next(vae.parameters()).device)
        held = right(
            decode(vae, encode(vae, images)).cpu().numpy(), self.cases.truths, self._executor
        )
        return round(sum(held) / len(held), 4)


def _batches(count: int) -> list[slice]:
    return [slice(start, start + BATCH) for start in range(0, count, BATCH)]


def _widened(rows: Tensor, width: int) -> Tensor:
    missing = width - rows.shape[1]
    return torch.nn.functional.pad(rows, (0, 0) * (rows.ndim - 2) + (0, missing))
