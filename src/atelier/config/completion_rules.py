"""Which settings of a policy that writes, and of what paints what it wrote, exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from atelier.config.paths import from_root, is_file
from atelier.config.schema import RunConfig
from atelier.config.sections.qwen import TEXT_WINDOW
from atelier.config.sections.sampler import LORA_RANKS
from atelier.config.suite_data import usable_heldout

Rejections = Iterator[tuple[str, str]]

# Tokens that reach the transformer beside a completion, at least: one of the user's words, the
# marks between these and the completion, and the one that ends it.
LEAST_AROUND = 7
# Pixels of a side that one of the language model's image tokens shows, and the fewest such a side.
_SEEN_PATCH, _FEWEST = 28, 2


def completion_rejections(config: RunConfig) -> Rejections:
    """Field and reason."""
    yield from _conditioning_rejections(config)
    yield from _shuffling_rejections(config)
    yield from _sampler_rejections(config)
    adapter = config.rollout.environment.adapter
    if adapter is not None and not is_file(from_root(adapter)):
        yield (
            "rollout.environment.adapter",
            f"there is no file {adapter}; download it, and name it here",
        )
    if config.rollout.kind == "edit":
        painted, coded = config.rollout.environment.dtype, config.policy.vae.dtype
        if painted != coded:
            yield (
                "policy.vae.dtype",
                f"{coded}, and rollout.environment.dtype is {painted}; a source image goes from "
                "the one into the other: use the same",
            )


def completion_warnings(config: RunConfig) -> Rejections:
    """Field and what is to be known before a run begins."""
    environment = config.rollout.environment
    is_qwen = config.policy.family == "qwen"
    if is_qwen and environment.preset == "lightning" and environment.adapter is None:
        yield (
            "rollout.environment.adapter",
            "null: the noise levels of preset lightning are for a transformer with its distilled "
            "LoRA, and images of another one are poor; download that file, and name it here",
        )
    if config.sampler is not None:
        yield (
            "rollout.completion.backend",
            "vllm: which token a seed draws depends on what else is drawn at the time, so a run "
            "that is repeated or resumed writes other completions",
        )


def _conditioning_rejections(config: RunConfig) -> Rejections:
    conditioning, is_edit = config.rollout.conditioning, config.rollout.kind == "edit"
    if conditioning.template == "planning" and is_edit:
        yield (
            "rollout.conditioning.template",
            "planning asks for an image from words, and rollout.kind is edit; use stock, or own",
        )
    window, tokens = conditioning.window, config.rollout.completion.max_tokens
    if window > TEXT_WINDOW and not is_edit:
        yield (
            "rollout.conditioning.window",
            f"{window}: the pipeline of text to image takes {TEXT_WINDOW} tokens at most",
        )
    image = _image_tokens(config) if is_edit else 0
    most = window - LEAST_AROUND - image
    prompt = f"a prompt with its source image ({image} tokens)" if is_edit else "a prompt"
    if most < 1:
        yield (
            "rollout.conditioning.window",
            f"{window} tokens hold no completion: {prompt} and its marks take "
            f"{LEAST_AROUND + image} or more; widen it",
        )
    elif tokens > most:
        yield (
            "rollout.completion.max_tokens",
            f"{tokens} tokens and {prompt} do not fit into rollout.conditioning.window {window}: "
            f"the last would change nothing in the image; at most {most}, less the longest prompt",
        )


def _image_tokens(config: RunConfig) -> int:
    """Of a source image, a square, as the language model sees it; a model whose own processor
    wants more pixels has more."""
    side = round(config.rollout.environment.condition_side / _SEEN_PATCH)
    return int(max(_FEWEST, side) ** 2)


def _sampler_rejections(config: RunConfig) -> Rejections:
    """Of completions that servers draw."""
    sampler, completion = config.sampler, config.rollout.completion
    if sampler is None:
        return
    if config.rollout.old_log_prob != "recompute":
        yield (
            "rollout.old_log_prob",
            "rollout: with rollout.completion.backend vllm another program says how likely its "
            "tokens were, and ratios have to be the trainer's own; use recompute",
        )
    if completion.log_prob == "full" and completion.temperature != 1:
        yield (
            "rollout.completion.log_prob",
            f"full: at temperature {completion.temperature:g} vllm does not say it; use sampler, "
            "or temperature 1",
        )
    if config.policy.trainable == "lora" and config.policy.lora.rank > LORA_RANKS[-1]:
        yield "policy.lora.rank", f"{config.policy.lora.rank}: vllm takes {LORA_RANKS[-1]} at most"
    servers = sampler.replicas if sampler.placement == "managed" else len(sampler.urls)
    if servers > config.launch.ranks:
        key = "replicas" if sampler.placement == "managed" else "urls"
        yield (
            f"rollout.sampler.{key}",
            f"{servers} servers for {config.launch.ranks} ranks (launch.processes x launch.nodes), "
            "each of which asks one",
        )


def _shuffling_rejections(config: RunConfig) -> Rejections:
    """Completions are exchanged between prompts of a batch, so each batch needs two."""
    evaluation = config.evaluation
    if evaluation.completions != "shuffled":
        return
    counts = {evaluation.prompts}
    if config.train.evaluate_every:
        counts.add(evaluation.periodic_prompts)
    heldout = usable_heldout(config.data, evaluation.suite)
    for count in sorted({min(one, heldout) for one in counts}):
        rows = [row // evaluation.images_of_a_prompt for row in _rows(count, config)]
        starts = [*range(0, len(rows), evaluation.micro_batch_size), len(rows)]
        if any(len({*rows[start:end]}) < 2 for start, end in pairwise(starts)):
            yield (
                "evaluation.micro_batch_size",
                f"{evaluation.micro_batch_size}: completions are shuffled among the prompts of a "
                f"batch, and of {count} prompts with {evaluation.images_of_a_prompt} image(s) each "
                "a batch would have one prompt only; choose another size, or number of prompts",
            )


def _rows(prompts: int, config: RunConfig) -> range:
    return range(prompts * config.evaluation.images_of_a_prompt)
