"""What Janus needs besides weights and engine.

    rollout   keys and values of every row, and reading the rows' contexts; or, once they are freed,
              the image tokenizer
    evaluation   the same of held-out images, where some are made while training
    replay    one segment of a micro-batch with gradients, the longest

    vision tower      in policy.base_dtype (float32 where everything is trained)
    image tokenizer   float32
    experience        codes and log-probs of a step's samples, and what they saw of their images

How long rows are, sequences.py says; what a pass over them takes, llama.py and replay.py.
tests/unit/test_janus_plan.py holds it against what is allocated on a CPU; no GPU has measured it
yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from atelier.config.facts.janus import JanusFacts
from atelier.config.memory.llama import LanguageModel
from atelier.config.memory.parts import Own, Together, made_together
from atelier.config.memory.replay import language_copies, largest, replays
from atelier.config.memory.sequences import longest_sequences
from atelier.config.schema import RunConfig

CODED_TOGETHER = 16  # images, of policies.janus.pixels.BATCH
_DECODED_TENSORS = 4  # of the image tokenizer's widest activation at the image's full size
_ENCODED_TENSORS = 6  # the same; transformers keeps the outcome of every level
_DISTANCES = 3  # tensors, from latents to codes
_SAMPLED_BYTES = 48  # a logit that is drawn from: guided in float32, summed up in float64


def janus_memory(config: RunConfig, facts: JanusFacts, images: int, actions: int) -> Own:
    """See the module. `images` are the samples whose experience is kept."""
    model = LanguageModel.of(config.policy, facts)
    phases = made_together(config)
    learned = phases["rollout"]
    if config.rollout.tokens.log_prob == "conditional":
        learned = replace(learned, guided=False)
    rows = longest_sequences(config, facts, learned)
    return Own(
        held={
            "vision tower": facts.images.vision_parameters * model.held,
            "image tokenizer": facts.images.tokenizer_parameters * 4,
            "experience": images * _experience(config, facts, actions, model.held),
            **_compiled(config, facts, model, phases.values()),
        },
        phases={
            **{
                phase: largest(
                    *_samplings(config, facts, model, one), _coding(config, facts, one.images)
                )
                for phase, one in phases.items()
            },
            "replay": largest(*replays(rows, config, facts)),
        },
    )


def packed_bytes(config: RunConfig, facts: JanusFacts, actions: int) -> int:
    """Of a sample in a checkpoint: tokens in 8 bytes, log-probs in 4, and of samples that judge
    what they drew, their images twice more: as codes of pixels, and as pixels."""
    rollout, images = config.rollout, facts.images
    packed = 12 * actions
    if rollout.kind == "edit":
        packed += 8 * images.tokens  # of the source image
    if rollout.kind == "introspect":
        rounds, limit = rollout.introspection.rounds, rollout.introspection.answer_tokens
        packed += rounds * (8 * images.tokens + 3 * images.pixels)
        packed += 4 * (2 * rounds - 1) * max(images.tokens, limit)  # log-probs as they were drawn
    return packed


# Held --------------------------------------------------------------------------------------------


def _experience(config: RunConfig, facts: JanusFacts, actions: int, held: int) -> int:
    """Bytes of a sample: codes or tokens in 8 bytes, log-probs in 4; and features of the images it
    looked at, each once in its story and once in the context of an answer."""
    seen = 0
    if config.rollout.kind == "introspect":
        looks = 2 * config.rollout.introspection.rounds - 1
        seen = looks * facts.images.tokens * facts.width * held
    return 12 * actions + seen


def _compiled(
    config: RunConfig, facts: JanusFacts, model: LanguageModel, made: Iterable[Together]
) -> dict[str, int]:
    """Keys and values of decoders that are compiled: one a shape, which waits for the next rows."""
    if config.rollout.tokens.execution != "compile":
        return {}
    drawn = {one for together in made for one in longest_sequences(config, facts, together)}
    kept = sum(model.keys_and_values(one.tokens, growing=False) for one in drawn)
    return {"keys and values": kept}


# Rollout -----------------------------------------------------------------------------------------


def _samplings(
    config: RunConfig, facts: JanusFacts, model: LanguageModel, together: Together
) -> Iterator[Mapping[str, int]]:
    """Reading the contexts, and drawing the last token. Decoders that are compiled hold their keys
    and values in any case."""
    execution = config.rollout.tokens.execution
    grows = execution == "dynamic"
    copied = language_copies(config, facts, all_of_them=not model.adapted)
    for one in longest_sequences(config, facts, together):
        contexts = one.rows * one.context
        at_first, at_last = (
            0 if execution == "compile" else model.keys_and_values(tokens, grows)
            for tokens in (contexts if grows else one.tokens, one.tokens)
        )
        logits = one.samples * one.vocabulary * _SAMPLED_BYTES
        yield {
            "16-bit copies": copied,
            "keys and values": at_first,
            "reading contexts": model.reading(contexts, one.length),
        }
        yield {"16-bit copies": copied, "keys and values": at_last, "logits": logits}


def _coding(config: RunConfig, facts: JanusFacts, images: int) -> Mapping[str, int]:
    """Images of codes, and where images are looked at or given, codes of images."""
    images = min(images, CODED_TOGETHER)
    encodes = config.rollout.kind != "draw" or config.algorithm.ground_truth.enabled
    tensors = _ENCODED_TENSORS if encodes else _DECODED_TENSORS
    pictures = tensors * images * facts.images.pixels * facts.images.channels * 4
    distances = _DISTANCES * images * facts.images.tokens * facts.codebook * 4 if encodes else 0
    return {"coding of images": max(pictures, distances)}
