"""What Qwen-Image needs besides weights and engine, where its text encoder is trained.

    rollout   writing completions over keys and values; or reading them for the image; or painting a
              batch of images, or decoding it
    evaluation   the same of held-out images, where some are made while training
    replay    a micro-batch of completions with gradients (replay.py)

    vision tower         in policy.base_dtype (float32 where everything is trained)
    frozen transformer   in rollout.environment.dtype
    autoencoder          in policy.vae.dtype; both on GPUs that only paint (painting_gpus), where
                         there are any, once for each rank, and painting and decoding there too
    negative prompt      a frozen copy of the language model in policy.dtype, where all of it is
                         trained and guided edits need their source images encoded by it
    experience           tokens and log-probs of a step's samples, and their source images

A pass over the language model takes what llama.py says; one through the frozen transformer as many
values a token as SD3's, whose blocks are of the same kind. Guidance is two calls, one after the
other. Of small models on a CPU, 0.75 to 1.1 of it was allocated; no GPU has measured it yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from atelier.config.facts.qwen import QwenFacts
from atelier.config.memory.llama import LanguageModel
from atelier.config.memory.parts import Own, made_together
from atelier.config.memory.replay import language_copies, largest, replays
from atelier.config.memory.sequences import PROMPT_TOKENS, Sequences
from atelier.config.placement import painting_gpus
from atelier.config.schema import RunConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES

_VALUES = 18  # a token and channel, through the frozen transformer
_DECODED_TENSORS = 4  # of the autoencoder's widest activation at the image's full size
_SAMPLED_BYTES = 48  # a logit that is drawn from: in float32, summed up in float64
_MERGED_PATCH = 28  # pixels of a side that one of the language model's image tokens shows
_PATCH_VALUES = 1176  # 2 x 3 x 14 x 14, in float32
_PATCHES_A_TOKEN = 4
_LATENT_PATCH = 16  # pixels of a side that one of the frozen transformer's tokens shows


def qwen_memory(config: RunConfig, facts: QwenFacts, images: int, actions: int) -> Own:
    """See the module. `images` are the samples whose experience is kept."""
    policy, environment = config.policy, config.rollout.environment
    model = LanguageModel.of(policy, facts)
    painter = facts.painter
    frozen = {
        "frozen transformer": painter.transformer_parameters * DTYPE_BYTES[environment.dtype],
        "autoencoder": painter.vae_parameters * DTYPE_BYTES[policy.vae.dtype],
    }
    phases, apart = made_together(config), painting_gpus(config)
    painting = {name: list(_painting(config, facts, one.images)) for name, one in phases.items()}
    learned = completions(config, facts, phases["rollout"].images)
    ranks_a_painter = config.launch.processes // apart if apart else 0
    return Own(
        held={
            "vision tower": facts.vision_parameters * model.held,
            **({} if apart else frozen),
            "negative prompt": _negative_bytes(config, facts),
            "experience": images * 12 * actions + _source_bytes(config, facts, images),
        },
        phases={
            **{
                phase: largest(
                    *_writing(config, facts, model, one.images, _writes(config, phase)),
                    *(() if apart else painting[phase]),
                )
                for phase, one in phases.items()
            },
            "replay": largest(*replays([learned], config, facts)),
        },
        painter={
            name: ranks_a_painter * size
            for name, size in {**frozen, **largest(*chain(*painting.values()))}.items()
            if apart
        },
    )


def packed_completion_bytes(actions: int) -> int:
    """Of a sample in a checkpoint: tokens in 8 bytes, log-probs in 4."""
    return 12 * actions


def completions(config: RunConfig, facts: QwenFacts, rows: int) -> Sequences:
    """So many completions at their longest; how long prompts are is not known."""
    new = config.rollout.completion.max_tokens
    context = PROMPT_TOKENS + _seen_tokens(config, facts)
    return Sequences(rows, rows, context, new, facts.vocabulary)


def _seen_tokens(config: RunConfig, facts: QwenFacts) -> int:
    """Of a source image, as the language model sees it."""
    if facts.kind != "edit":
        return 0
    side = -(-config.rollout.environment.condition_side // _MERGED_PATCH)
    return side**2


def _source_bytes(config: RunConfig, facts: QwenFacts, images: int) -> int:
    """Source images as the vision tower takes them: once for each prompt of a micro-batch, whose
    samples share it. They lie in main memory, which on a CPU is the device."""
    if config.launch.device != "cpu":
        return 0
    size, group = config.rollout.micro_batch_size, config.rollout.group_size
    prompts = images // size * -(-size // group)
    return prompts * _seen_tokens(config, facts) * _PATCHES_A_TOKEN * _PATCH_VALUES * 4


def _negative_bytes(config: RunConfig, facts: QwenFacts) -> int:
    """A copy without its head, held in what it computes in."""
    guided = max(config.rollout.guidance_scale, config.evaluation.guidance_scale) > 1
    if not guided or facts.kind != "edit" or config.policy.trainable != "full":
        return 0
    head = facts.vocabulary * facts.width
    return DTYPE_BYTES[config.policy.dtype] * (facts.parameters - head)


def _writes(config: RunConfig, phase: str) -> bool:
    """Whether completions are written in a phase that makes images."""
    return phase == "rollout" or config.evaluation.completions != "none"


def _writing(
    config: RunConfig, facts: QwenFacts, model: LanguageModel, images: int, writes: bool
) -> Iterator[Mapping[str, int]]:
    """Reading prompts, drawing the last token, and reading both once more for the image; or the
    prompts alone."""
    rows = completions(config, facts, images)
    copied = language_copies(config, facts, all_of_them=not model.adapted)
    whole = rows.length + 1 if writes else rows.context
    yield {
        "16-bit copies": copied,
        "reading completions" if writes else "reading prompts": model.reading(
            images * whole, whole
        ),
    }
    if not writes:
        return
    contexts = rows.rows * rows.context
    yield {
        "16-bit copies": copied,
        "keys and values": model.keys_and_values(contexts, growing=True),
        "reading prompts": model.reading(contexts, rows.context),
    }
    yield {
        "16-bit copies": copied,
        "keys and values": model.keys_and_values(rows.tokens, growing=True),
        "logits": rows.samples * rows.vocabulary * _SAMPLED_BYTES,
    }


def _painting(config: RunConfig, facts: QwenFacts, images: int) -> Iterator[Mapping[str, int]]:
    """Denoising a batch of so many images, and decoding it."""
    policy, environment, painter = config.policy, config.rollout.environment, facts.painter
    rows = completions(config, facts, images)
    batch = min(environment.micro_batch_size or config.rollout.micro_batch_size, images)
    reference = 0
    if facts.kind == "edit":
        batch = 1
        reference = (environment.reference_side // _LATENT_PATCH) ** 2
    text = min(rows.context + rows.new, config.rollout.conditioning.window)
    tokens = painter.image_tokens + reference + text
    value = DTYPE_BYTES[environment.dtype]
    yield {"painting": _VALUES * batch * tokens * painter.width * value}
    decoded = 1 if policy.vae.slicing else batch
    wide = decoded * painter.pixels * painter.vae_channels * DTYPE_BYTES[policy.vae.dtype]
    yield {"decoding": _DECODED_TENSORS * wide}
