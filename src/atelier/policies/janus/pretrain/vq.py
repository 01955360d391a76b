"""Training of the image tokenizer, apart and first: everything else learns its codes.

Codes and latents are directions: both are normalised, as the original does and as decoding does in
transformers. At the end the codebook holds unit vectors, so that the library's encoding, which does
not normalise, finds the same codes.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from transformers import JanusVQVAE

from atelier.policies.janus.pixels import normalise_codebook, to_uint8
from atelier.policies.janus.pretrain.options import Options
from atelier.policies.pretraining.compute import (
    WARMUP_STEPS,
    Recorded,
    adamw,
    cosine,
    differences,
    rounded,
    set_rate,
    to_pixels,
)
from atelier.policies.pretraining.course import Course

log = logging.getLogger(__name__)
BATCH = 1000  # of encoding and decoding
LOOK_EVERY = 50  # steps: which codes are used?
REVIVE_UNTIL = 0.6  # of the time: then codes settle
RARE = 0.1  # a code that is used less than this share of the mean is moved
COMMITMENT = 0.25
INK = 0.5


def train_tokenizer(vq: JanusVQVAE, images: Tensor, options: Options) -> dict[str, Any]:
    """Train in place on uint8 `images` [N, H, W, 3] for `vq_seconds`; returns what it measured."""
    vq.requires_grad_(True)
    training = _Training(vq, images, options)
    course, entry = Course(options.vq_seconds, options.vq_steps), {}
    for done in course:
        warm = min(1.0, course.step / WARMUP_STEPS)
        training.step(options.vq_learning_rate * warm * cosine(done))
        if course.step % LOOK_EVERY == 0:
            entry = training.look(revive=done < REVIVE_UNTIL)
        if course.step % (10 * LOOK_EVERY) == 0:
            log.info("vq step %d %.0f %% %s", course.step, 100 * done, entry)
    normalise_codebook(vq.quantize.embedding)
    vq.eval().requires_grad_(False)
    return {"steps": course.step, "seconds": round(course.seconds, 1), **entry}


class _Training:
    """The optimizer, and which codes the last steps used."""

    def __init__(self, vq: JanusVQVAE, images: Tensor, options: Options) -> None:
        self._vq, self._images, self._batch = vq, images, options.vq_batch
        device = images.device
        parameters = list(vq.parameters())
        groups = [{"params": parameters, "weight_decay": 0.0}]
        self._parameters = parameters
        self._optimizer = adamw(groups, (0.9, 0.99), device)
        self._generator = torch.Generator(device).manual_seed(options.seed)
        self._update = Recorded(self._one_step, self._generator, options.record)
        self._used = torch.zeros(options.codes, device=device)
        self._parts: dict[str, Tensor] = {}
        self._directions = torch.empty(0)

    def step(self, rate: float) -> None:
        set_rate(self._optimizer, rate)
        self._update()

    def look(self, revive: bool) -> dict[str, float]:
        """The losses of the last step and how evenly codes are used; moves codes that are not."""
        entry = rounded(self._parts)
        entry["perplexity"] = round(_perplexity(self._used), 1)
        if revive:
            _revive(self._vq.quantize.embedding.weight, self._used, self._directions)
        self._used.zero_()
        return entry

    def _one_step(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        where: Any = {"generator": self._generator, "device": self._images.device}
        index = torch.randint(len(self._images), (self._batch,), **where)
        loss, self._parts, codes, self._directions = _loss(self._vq, to_pixels(self._images[index]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        codes = codes.flatten()
        self._used.index_add_(0, codes, torch.ones_like(codes, dtype=self._used.dtype))


@torch.no_grad()
def encode(vq: JanusVQVAE, images: Tensor) -> Tensor:
    """Codes [N, tokens] int16 of uint8 images [N, H, W, 3]."""
    parts = [
        vq.encode(to_pixels(part)).image_tokens.view(len(part), -1).to(torch.int16)
        for part in images.split(BATCH)
    ]
    return torch.cat(parts)


@torch.no_grad()
def decode(vq: JanusVQVAE, codes: Tensor) -> Tensor:
    """uint8 images [N, H, W, 3] of codes [N, tokens]."""
    parts = [to_uint8(vq.decode(part.long()).permute(0, 2, 3, 1)) for part in codes.split(BATCH)]
    return torch.cat(parts)


def _loss(vq: JanusVQVAE, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor, Tensor]:
    """The loss, its parts, the codes [B, h, w] and the latents' directions [B, h, w, C]."""
    dtype = torch.bfloat16 if pixels.is_cuda else pixels.dtype
    latents = _run(vq.quant_conv, _run(vq.encoder, pixels.to(dtype))).float()
    directions = functional.normalize(latents.permute(0, 2, 3, 1), dim=-1)
    book = functional.normalize(vq.quantize.embedding.weight, dim=-1)
    codes = (directions.detach() @ book.detach().T).argmax(dim=-1)
    chosen = functional.embedding(codes, book)
    through = directions + (chosen - directions).detach()  # the gradient goes past the choice
    decoded = _run(vq.post_quant_conv, through.permute(0, 3, 1, 2).to(dtype))
    decoded = _run(vq.decoder, decoded).float()
    parts = differences(decoded, pixels)
    parts["ink"] = _ink_error(decoded, pixels)
    parts["codebook"] = functional.mse_loss(chosen, directions.detach())
    parts["commitment"] = functional.mse_loss(directions, chosen.detach())
    loss = parts["l1"] + parts["mse"] + parts["edge"] + INK * parts["ink"]
    loss = loss + parts["codebook"] + COMMITMENT * parts["commitment"]
    return loss, {name: value.detach() for name, value in parts.items()}, codes, directions.detach()


def _run(module: nn.Module, values: Tensor) -> Tensor:
    """The module in the dtype of what it is given: autocast would norm in float32, twice the
    traffic of a network that does little else than move images."""
    weights = {name: weight.to(values.dtype) for name, weight in module.named_parameters()}
    found: Tensor = functional_call(module, weights, (values,))
    return found


def _ink_error(decoded: Tensor, pixels: Tensor) -> Tensor:
    """Mean difference where there is ink, and around it: most of an image is paper."""
    ink = functional.max_pool2d(1 - pixels.amin(dim=1, keepdim=True), 5, stride=1, padding=2)
    return (ink * (decoded - pixels).abs()).mean() / ink.mean()


@torch.no_grad()
def _revive(codebook: Tensor, used: Tensor, directions: Tensor) -> None:
    """Move codes that are hardly used onto latents of the last batch."""
    rare = (used < RARE * used.mean()).nonzero()[:, 0]
    latents = directions.flatten(0, -2)
    chosen = torch.randint(len(latents), (len(rare),), device=latents.device)
    codebook[rare] = latents[chosen]


def _perplexity(used: Tensor) -> float:
    """How many codes are used, had all the same share: the exponential of the entropy."""
    share = used / used.sum()
    return float(torch.exp(-(share * share.clamp(min=1e-12).log()).sum()))
