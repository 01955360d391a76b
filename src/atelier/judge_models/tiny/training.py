"""Training of the embedded judge: the answer to a question about a picture, cross-entropy.

Half of the pictures go through the embedded autoencoder with noise on the latents, so that the
judge has seen pictures as soft as those it will judge. A few are no picture at all, and what is
asked of them is answered no: an untrained generator draws such.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from atelier.data.questions import NO, Question
from atelier.judge_models.tiny.examples import Examples, make_examples
from atelier.judge_models.tiny.model import (
    END,
    IMAGE,
    TinyJudgeSizes,
    build_model,
    build_tokenizer,
    conversation,
)
from atelier.judge_models.tiny.network import text_logits

log = logging.getLogger(__name__)
WARMUP_STEPS = 300
DECODE_BATCH = 2000
# Words need more than the other kinds: every letter has to be read.
# Descriptions teach to see: a yes or no says little of a picture, its caption says all.
KIND_WEIGHTS = {
    **{"colour": 1, "shape": 1, "count": 1, "position": 1, "word": 2, "caption": 3},
    **{"read": 5, "describe": 5},
}
NO_PICTURE = 0.1  # of the questions whose answer is no
COARSENESS = (64, 32, 16, 8, 4, 2)  # cells a side of what is no picture
UNASKED = -100  # no loss where nothing is answered


@dataclass(frozen=True)
class Options:
    """How the judge is made; kept in its record."""

    device: str = "cuda"
    seed: int = 0
    scenes: int = 100_000
    seconds: float = 400.0
    steps: int = 1_000_000
    batch: int = 1024
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    latent_noise: float = 0.35
    pixel_noise: float = 8.0
    autoencoder: str = "assets/tiny-sd3/vae"


@dataclass(frozen=True)
class Tokens:
    """Conversations as token ids [N, L], and where each one's answer begins and ends [N].

    The image's tokens begin at `image` in all.
    """

    ids: Tensor
    image: int
    begin: Tensor
    end: Tensor


def tokenise(questions: Sequence[Question], tokenizer: Qwen2Tokenizer) -> Tokens:
    """Conversations with the image's tokens in place, padded on the right.

    The answer reaches from its first token to the one that ends the message.
    """
    image = IMAGE * TinyJudgeSizes().image_tokens
    asked = tokenizer([conversation(one.text).replace(IMAGE, image) for one in questions])
    # By themselves, as they are generated: a word takes the white space before it along.
    answers = tokenizer([one.answer for one in questions])
    end = tokenizer.convert_tokens_to_ids(END)
    begin = [len(prompt) for prompt in asked["input_ids"]]
    pairs = zip(asked["input_ids"], answers["input_ids"], strict=True)
    ids = [[*prompt, *answer, end] for prompt, answer in pairs]
    padded = np.full((len(ids), max(map(len, ids))), tokenizer.pad_token_id, np.int32)
    for row, own in zip(padded, ids, strict=True):
        row[: len(own)] = own
    ends = [len(own) for own in ids]
    first = ids[0].index(tokenizer.convert_tokens_to_ids(IMAGE))
    return Tokens(torch.from_numpy(padded), first, torch.tensor(begin), torch.tensor(ends))


def train(options: Options) -> tuple[Qwen2_5_VLForConditionalGeneration, dict[str, Any]]:
    """A trained judge in float32 on the CPU, and a record of how it was made."""
    tokenizer = build_tokenizer()
    examples = make_examples(options.scenes, "train", options.seed)
    log.info("%d pictures, %d questions", len(examples.images), len(examples.questions))
    tokens = tokenise(examples.questions, tokenizer)
    device = torch.device(options.device)
    model = build_model(tokenizer, seed=options.seed).to(device).train()
    softened = _Softened(examples, options, device)
    losses = _descend(model, examples, tokens, softened, options)
    record = {"options": asdict(options), "questions": len(examples.questions), **losses}
    return model.cpu().eval(), record


def _descend(
    model: Qwen2_5_VLForConditionalGeneration,
    examples: Examples,
    tokens: Tokens,
    softened: _Softened,
    options: Options,
) -> dict[str, Any]:
    """Train in place for the seconds or steps given, whichever end first."""
    device = softened.device
    compute = torch.compile(_loss) if device.type == "cuda" else _loss
    draws = _Draws(examples, options.seed)
    ids, labels = tokens.ids.to(device), _labels(tokens).to(device)
    image_of = torch.from_numpy(examples.image_of).to(device)
    denied = torch.tensor([one.answer == NO for one in examples.questions], device=device)
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=options.weight_decay
    )
    start, step, curve = time.monotonic(), 0, []
    while True:
        done = max((time.monotonic() - start) / options.seconds, step / options.steps)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * _schedule(step, done)
        chosen = torch.from_numpy(draws.next(options.batch)).to(device)
        images = softened.of(image_of[chosen], denied[chosen])
        loss, right = compute(model, images, ids[chosen], labels[chosen], tokens.image)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 500 == 0:
            point = {"step": step, "loss": round(loss.item(), 4), "right": round(right.item(), 4)}
            log.info("%3.0f %% %s", 100 * done, point)
            curve.append(point)
    return {"steps": step, "seconds": round(time.monotonic() - start, 1), "curve": curve}


def _labels(tokens: Tokens) -> Tensor:
    """The token behind each place where it belongs to an answer, else `UNASKED`; [N, L - 1]."""
    place = torch.arange(1, tokens.ids.shape[1])
    answered = (tokens.begin[:, None] <= place) & (place < tokens.end[:, None])
    return tokens.ids[:, 1:].where(answered, torch.tensor(UNASKED, dtype=torch.int32))


def _loss(
    model: Qwen2_5_VLForConditionalGeneration,
    images: Tensor,
    ids: Tensor,
    labels: Tensor,
    image_start: int,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the answers' tokens; share of answers that are right in every token."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        logits = text_logits(model, images, ids.long(), image_start).float()[:, :-1]
    loss = functional.cross_entropy(
        logits.flatten(0, 1), labels.long().flatten(), ignore_index=UNASKED
    )
    right = ((logits.argmax(dim=-1) == labels) | (labels == UNASKED)).all(dim=1)
    return loss, right.float().mean()


def _schedule(step: int, done: float) -> float:
    """Warm-up by steps, then a cosine to 0 over the time."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


class _Draws:
    """Numbers of questions, kinds in the proportions of `KIND_WEIGHTS`, yes as often as no."""

    def __init__(self, examples: Examples, seed: int) -> None:
        by_kind = examples.by_kind()
        self._numbers = list(by_kind.values())
        kinds = [kind for kind, _ in by_kind]
        weights = [KIND_WEIGHTS[kind] / kinds.count(kind) for kind in kinds]
        self._shares = np.asarray(weights) / sum(weights)
        self._random = np.random.default_rng(seed)

    def next(self, count: int) -> NDArray[np.int64]:
        counts = self._random.multinomial(count, self._shares)
        drawn = [
            own[self._random.integers(len(own), size=number)]
            for own, number in zip(self._numbers, counts, strict=True)
        ]
        return np.concatenate(drawn)


class _Softened:
    """Pictures as a generator may draw them: half of them decoded from noisy latents."""

    def __init__(self, examples: Examples, options: Options, device: torch.device) -> None:
        self.device = device
        self._options = options
        self._sharp = torch.from_numpy(examples.images).to(device)
        self._soft = _decoded(self._sharp, options)

    def of(self, numbers: Tensor, denied: Tensor) -> Tensor:
        """uint8 [N, 64, 64, 3]; drawn anew at every call.

        Args:
            numbers: of the pictures.
            denied: bool [N]: the answer is no, and stays so where no picture is shown.
        """
        soft = torch.rand(len(numbers), 1, 1, 1, device=self.device) < 0.5
        images = torch.where(soft, self._soft[numbers], self._sharp[numbers]).float()
        noise = self._options.pixel_noise * torch.rand(len(images), 1, 1, 1, device=self.device)
        images = images + noise * torch.randn_like(images)
        places = (denied & (torch.rand(len(images), device=self.device) < NO_PICTURE)).nonzero()[
            :, 0
        ]
        images[places] = _no_pictures(len(places), images)
        return images.round().clamp(0, 255).to(torch.uint8)


def _no_pictures(count: int, like: Tensor) -> Tensor:
    """Noise of any coarseness and strength around any colour; float [count, 64, 64, 3]."""
    side = like.shape[1]
    drawn = torch.empty(count, side, side, 3, device=like.device)
    for part, cells in zip(drawn.chunk(len(COARSENESS)), COARSENESS, strict=False):
        noise = torch.randn(len(part), 3, cells, cells, device=like.device)
        mode = "bilinear" if cells < side else "nearest"
        part.copy_(functional.interpolate(noise, size=side, mode=mode).permute(0, 2, 3, 1))
    colour = 255 * torch.rand(count, 1, 1, 3, device=like.device)
    return colour + 100 * torch.rand(count, 1, 1, 1, device=like.device) * drawn


@torch.no_grad()
def _decoded(images: Tensor, options: Options) -> Tensor:
    """Every picture once through the autoencoder, with noise of its own strength on the latent."""
    autoencoder = AutoencoderKL.from_pretrained(
        Path(options.autoencoder), torch_dtype=torch.float32
    )
    autoencoder = autoencoder.to(images.device).eval()
    decoded = []
    for part in images.split(DECODE_BATCH):
        latents = autoencoder.encode(_pixels(part)).latent_dist.mean
        level = options.latent_noise * torch.rand(len(part), 1, 1, 1, device=images.device)
        latents = latents + level * latents.std() * torch.randn_like(latents)
        pixels = (autoencoder.decode(latents).sample.permute(0, 2, 3, 1) + 1) * 127.5
        decoded.append(pixels.round().clamp(0, 255).to(torch.uint8))
    return torch.cat(decoded)


def _pixels(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1
