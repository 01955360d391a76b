"""One image a sample: of a prompt, or of a source image and an instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from atelier.data.prompts import Prompt
from atelier.policies.base import Rollout, Sample, scored_rollout
from atelier.policies.janus.conversation import Context
from atelier.policies.janus.log_probs import Sampler
from atelier.policies.janus.module import Segment
from atelier.policies.janus.parts import Parts, stacked
from atelier.policies.janus.rows import Drawn, Rows, stack


class Drawing:
    """Draws, or edits.

    Args:
        edits: whether a source image comes before the prompt, which is then an instruction.
    """

    def __init__(self, parts: Parts, edits: bool) -> None:
        self._parts = parts
        self._edits = edits

    @torch.no_grad()
    def rollout(self, module: nn.Module, samples: Sequence[Sample], keys: Sequence[int]) -> Rollout:
        """Sampled images, and ground truth where a sample is that."""
        parts = self._parts
        sources = self._source_codes([one.prompt for one in samples])
        rows = self._rows([one.prompt for one in samples], sources)
        drawn = [place for place, one in enumerate(samples) if one.truth is None]
        given = [place for place, one in enumerate(samples) if one.truth is not None]
        codes = torch.zeros(len(samples), parts.module.image_tokens, dtype=torch.long)
        codes = codes.to(parts.device)
        log_probs = codes.new_zeros(codes.shape, dtype=torch.float32)
        images = np.zeros((len(samples), *parts.pixels.shape), np.uint8)
        if drawn:
            part, picked = rows.at(drawn), [keys[place] for place in drawn]
            with parts.autocast():
                tokens = parts.generation.images(part, picked, parts.sampler, parts.form)
            codes[drawn], log_probs[drawn] = tokens.codes, tokens.log_probs
            images[drawn] = parts.pixels.decode(tokens.codes)
        if given:
            truths = parts.truths([one.truth for one in samples if one.truth is not None])
            codes[given], images[given] = parts.pixels.encode(truths), stacked(truths)
            segment = Segment(rows.at(given), codes[given], parts.form)
            with parts.autocast():
                log_probs[given] = module(segment)
        record = {"segments": [Segment(rows, codes, parts.form)], "sources": sources}
        edited = parts.sources([one.prompt for one in samples]) if self._edits else None
        return Rollout(samples, codes.shape[1], log_probs, images, record, sources=edited)

    def generate(
        self, prompts: Sequence[Prompt], keys: Sequence[int], sampler: Sampler
    ) -> np.ndarray:
        """Images uint8 [B, H, W, 3]."""
        parts = self._parts
        rows = self._rows(prompts, self._source_codes(prompts))
        with parts.autocast():
            tokens = parts.generation.images(rows, keys, sampler)
        return parts.pixels.decode(tokens.codes)

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        (segment,) = rollout.record["segments"]
        assert rollout.old_log_probs is not None  # as rollout() makes it
        packed = {"codes": segment.targets, "old_log_probs": rollout.old_log_probs}
        sources = rollout.record["sources"]
        return packed if sources is None else {**packed, "sources": sources}

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        codes, sources = tensors["codes"], tensors.get("sources")
        rows = self._rows([one.prompt for one in samples], sources)
        segments = [Segment(rows, codes, self._parts.form)]
        record = {"segments": segments, "sources": sources}
        return scored_rollout(samples, codes.shape[1], tensors["old_log_probs"], record)

    def _source_codes(self, prompts: Sequence[Prompt]) -> Tensor | None:
        """[B, N] where there is something to edit."""
        if not self._edits:
            return None
        return self._parts.pixels.encode(self._parts.sources(prompts))

    def _rows(self, prompts: Sequence[Prompt], sources: Tensor | None) -> Rows:
        contexts: list[Context] = []
        pictures: list[list[Drawn]] = []
        for place, prompt in enumerate(prompts):
            if sources is None:
                contexts.append(self._parts.conversation.drawing(prompt.text))
                pictures.append([])
            else:
                contexts.append(self._parts.conversation.editing(prompt.text))
                pictures.append([Drawn(sources[place])])
        pad = self._parts.conversation.pad
        return stack(contexts, pictures, pad).to(self._parts.device)
