"""What a replay of a language model's tokens takes.

Without gradient checkpointing the activations of all layers are there at once. With it a layer's
input is kept, and one layer is there at a time; autocast's copies of all weights are in the forward
pass alone. Logits exist for LOGITS_CHUNK tokens at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atelier.config.facts.base import LanguageFacts
from atelier.config.memory.llama import LanguageModel
from atelier.config.memory.parts import copies
from atelier.config.memory.sequences import Sequences
from atelier.config.schema import RunConfig

LOGITS_CHUNK = 64  # of policies.janus.module.JanusModule, policies.qwen.module.QwenModule
_LOGIT_TENSORS = 6  # in float32, from a chunk's logits to its log-probs and back


def largest(*moments: Mapping[str, int]) -> Mapping[str, int]:
    return max(moments, key=lambda sizes: sum(sizes.values()))


@dataclass(frozen=True)
class _Segment:
    """A segment that is replayed, and what its tokens' log-probs take."""

    rows: Sequences
    logits: int
    compared: bool  # with a reference


def replays(
    segments: Sequence[Sequences], config: RunConfig, facts: LanguageFacts
) -> Iterator[Mapping[str, int]]:
    """The moments that may be the worst of a replay of these segments, one after the other."""
    model = LanguageModel.of(config.policy, facts)
    for rows in segments:
        segment = _Segment(rows, _logits(rows, model), config.algorithm.beta > 0)
        if config.policy.gradient_checkpointing:
            forward, backward = _checkpointed(segment, model)
            copied = language_copies(config, facts, all_of_them=not model.adapted)
            yield _moment(copied, forward)
            yield _moment(language_copies(config, facts, all_of_them=False), backward)
        else:
            copied = language_copies(config, facts, all_of_them=True)
            yield _moment(copied, _whole(segment, model))
    if not model.adapted:
        # At the end of a backward pass, before it is added to that of other segments.
        yield {"gradient of the text's table": 4 * facts.vocabulary * facts.width}


def language_copies(config: RunConfig, facts: LanguageFacts, all_of_them: bool) -> int:
    """Autocast's copies of weights. The text's table is looked up and not multiplied with."""
    multiplied = facts.parameters - facts.untrained_parameters - facts.vocabulary * facts.width
    return copies(config.policy, multiplied, facts.layers, all_of_them)


def _moment(copied: int, activations: int) -> Mapping[str, int]:
    return {"16-bit copies": copied, "activations": activations}


def _whole(segment: _Segment, model: LanguageModel) -> int:
    """All layers at once, and the worst of what comes after them."""
    rows = segment.rows
    kept = model.layers * model.layer_kept(rows.tokens, rows.length) + model.end_kept(rows.tokens)
    reference = model.reading(rows.tokens, rows.length) if segment.compared else 0
    return kept + max(model.end_backward(rows.tokens), segment.logits, reference)


def _checkpointed(segment: _Segment, model: LanguageModel) -> tuple[int, int]:
    """In the forward and in the backward pass."""
    rows = segment.rows
    kept = model.inputs_kept(rows.tokens) + model.end_kept(rows.tokens)
    layer = model.layer_kept(rows.tokens, rows.length) + model.layer_backward(rows.tokens)
    forward = model.reading(rows.tokens, rows.length)
    return kept + forward, kept + max(layer, segment.logits)


def _logits(rows: Sequences, model: LanguageModel) -> int:
    """Of one chunk with gradients, and the gradient of the head that makes them."""
    chunk = min(LOGITS_CHUNK, rows.new) * rows.vocabulary
    head = 0 if model.adapted else (model.computed + 4) * rows.vocabulary * model.width
    return chunk * (2 * model.computed * rows.rows + 4 * _LOGIT_TENSORS * rows.samples) + head
