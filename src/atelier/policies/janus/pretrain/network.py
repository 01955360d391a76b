"""The model's forward pass over many whole conversations at once, and the losses of the tasks.

transformers' own makes a mask of padding, and takes gaps in the positions for the seams of packed
sequences. Here rows are padded on the right, so that plain causal attention is right for all that
is predicted. A test holds this pass to the library's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import JanusForConditionalGeneration

UNASKED = -100  # no loss there


@dataclass(frozen=True)
class Batch:
    """Rows of one task on one device: tensors of `sequences.Table`, and their images.

    Attributes:
        pictures: uint8 [B, H, W, 3] that are looked at; None without any.
        given: codes [B, N] of images that are in the context as drawn; None without any.
        drawn: codes [B, N] to be predicted; None where text is.
        width: most tokens that are predicted.
    """

    tokens: Tensor
    places: Tensor
    target: Tensor
    width: int
    pictures: Tensor | None = None
    given: Tensor | None = None
    drawn: Tensor | None = None


def embed(model: JanusForConditionalGeneration, batch: Batch) -> Tensor:
    """Embeddings [B, L, D]: of text, of the image that is given, of the one that is drawn."""
    text = model.get_input_embeddings()(batch.tokens.clamp(min=0))
    images = []
    if batch.pictures is not None:
        images.append(look(model, batch.pictures))
    for codes in (batch.given, batch.drawn):
        if codes is not None:
            images.append(model.prepare_embeddings_for_image_generation(codes))
    slots = batch.tokens < 0
    # The k-th slot of a row is the k-th embedding of its images.
    number = (slots.cumsum(dim=1) - 1).clamp(min=0)
    known = torch.cat(images, dim=1).to(text.dtype)
    placed = known.gather(1, number[..., None].expand(-1, -1, known.shape[-1]))
    return torch.where(slots[..., None], placed, text)


def look(model: JanusForConditionalGeneration, pictures: Tensor) -> Tensor:
    """What the language model sees of uint8 images [B, H, W, 3]: [B, N, D]."""
    vision = model.model.vision_model
    embeddings = vision.embeddings
    size, pixels = embeddings.patch_size, pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
    count, channels, height, width = pixels.shape
    # A convolution that moves by its own size is linear, and many times faster so on a GPU.
    patches = pixels.reshape(count, channels, height // size, size, width // size, size)
    patches = patches.permute(0, 2, 4, 1, 3, 5).reshape(count, -1, channels * size * size)
    kernel = embeddings.patch_embedding
    hidden = functional.linear(patches, kernel.weight.flatten(1), kernel.bias)
    hidden = hidden + embeddings.position_embedding.weight
    for layer in vision.encoder.layers:
        hidden = layer(hidden, None)
    return model.model.aligner(vision.post_layernorm(hidden))


def read(model: JanusForConditionalGeneration, embedded: Tensor, places: Tensor) -> Tensor:
    """Last hidden states [B, L, D] of whole conversations."""
    language = model.model.language_model
    rotation = language.rotary_emb(embedded, position_ids=places)
    hidden = embedded
    for layer in language.layers:
        hidden = layer(hidden, attention_mask=None, position_embeddings=rotation)
    return language.norm(hidden)


def loss(model: JanusForConditionalGeneration, hidden: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of what is predicted: image tokens or text.

    Of text the first token has half of the weight: it is the answer, the rest gives reasons
    (spec janus 4.1 has 0.8).
    """
    if batch.drawn is not None:
        logits = model.model.generation_head(_before(hidden, batch.target, batch.width))
        return functional.cross_entropy(logits.float().flatten(0, 1), batch.drawn.flatten())
    logits = model.lm_head(_before(hidden, batch.target, batch.width)).float()
    labels = _labels(batch.tokens, batch.target, batch.width)
    each = functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=UNASKED, reduction="none"
    )
    rest = labels[:, 1:] != UNASKED
    return 0.5 * each[:, 0].mean() + 0.5 * each[:, 1:].sum() / rest.sum().clamp(min=1)


def _before(hidden: Tensor, target: Tensor, count: int) -> Tensor:
    """Hidden states [B, count, D] that predict the tokens from the target's start on."""
    index = target[:, :1] - 1 + torch.arange(count, device=hidden.device)
    index = index.clamp(max=hidden.shape[1] - 1)
    return hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))


def _labels(tokens: Tensor, target: Tensor, width: int) -> Tensor:
    place = target[:, :1] + torch.arange(width, device=tokens.device)
    own = tokens.gather(1, place.clamp(max=tokens.shape[1] - 1))
    return torch.where(place < target[:, 1:], own, UNASKED)
