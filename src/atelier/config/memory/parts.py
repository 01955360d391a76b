"""What is the same for every family: weights, what the engine holds, copies in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atelier.config.facts.base import ModelFacts
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES

# Parameters of a bucket of configs/deepspeed, by launch.zero_tuning: what is reduced at once, and
# gathered, which ZeRO-3 does beside the block it is at.
_BUCKET = {"general": 50_000_000, "sd3": 105_000_000}

Sizes = dict[str, int]
"""Bytes by what they are for."""


@dataclass(frozen=True)
class Own:
    """What a family needs besides weights and engine: held all the time, in each phase, and on a
    GPU that only paints, if there are any."""

    held: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]
    painter: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Together:
    """Images that are made together, and whether with guidance."""

    images: int
    guided: bool

    @property
    def rows(self) -> int:
        """Both branches of guidance."""
        return self.images * (2 if self.guided else 1)


def made_together(config: RunConfig) -> dict[str, Together]:
    """By the phases that make images: those to learn from, and held-out ones between two steps."""
    rollout, evaluation, train = config.rollout, config.evaluation, config.train
    phases = {"rollout": Together(rollout.micro_batch_size, rollout.guidance_scale > 1)}
    if 0 < train.evaluate_every <= train.steps:
        all_of_them = evaluation.periodic_prompts * evaluation.images_of_a_prompt
        images = min(evaluation.micro_batch_size, all_of_them)
        phases["evaluation"] = Together(images, evaluation.guidance_scale > 1)
    return phases


def weights(config: RunConfig, facts: ModelFacts, ranks: int) -> Sizes:
    """Of the part that is trained, and of what it is compared with."""
    policy = config.policy
    lora = policy.trainable == "lora"
    shards = ranks if _stage(config) == 3 else 1
    copied = not lora and config.algorithm.beta > 0
    return {
        "base": facts.parameters * DTYPE_BYTES[policy.base_dtype] // shards,
        "adapter": 4 * facts.adapter_parameters // shards if lora else 0,
        "reference": 4 * facts.parameters if copied else 0,
    }


def engine(config: RunConfig, trained: int, ranks: int) -> tuple[Sizes, Sizes]:
    """What training holds on the device, and in main memory."""
    stage = _stage(config)
    own = trained // shards_of_optimizer(config, ranks)
    state = {"gradients": 4 * own, "optimizer": (12 if stage else 8) * own}
    if not stage:
        return {**state, "buckets": 4 * trained if ranks > 1 else 0}, {}
    buckets = {"buckets": 2 * 4 * min(_bucket(config), trained)}
    return (buckets, state) if config.launch.offload else ({**state, **buckets}, {})


def copies_beside_trained(config: RunConfig) -> bool:
    """Whether the average of the trained weights, and those that sample where they are others, are
    on the device; else in main memory."""
    return config.policy.trainable == "lora"


def copies_of_trained(config: RunConfig, trained: int) -> Sizes:
    """Bytes of each of these copies by its name, and of the trained weights beside it: these are
    kept while the copy is in their place, or come from the device to be averaged."""
    sizes = {}
    if config.train.ema.enabled:
        sizes["moving average"] = 8 * trained
    if config.algorithm.keeps_behaviour:
        sizes["weights that sample"] = 8 * trained
    return sizes


def tensors_of_a_checkpoint(config: RunConfig, trained: int) -> int:
    """Bytes of what it holds of the trained weights: they, AdamW's moments, and their copies. It is
    written from main memory while training goes on."""
    copies = config.train.ema.enabled + config.algorithm.keeps_behaviour
    return 4 * trained * (3 + copies)


def shards_of_optimizer(config: RunConfig, ranks: int) -> int:
    """Among how many ranks its state is shared out."""
    return ranks if _stage(config) else 1


def copies(policy: PolicyConfig, parameters: int, layers: int, all_of_them: bool) -> int:
    """Bytes of the 16-bit copies of 32-bit weights.

    Args:
        parameters: that are multiplied with in 16 bits.
        all_of_them: or of one layer at a time. Autocast remembers the copies of what is trained; a
            backward pass needs those that it does not make again.
    """
    if policy.dtype == policy.base_dtype:
        return 0
    return 2 * (parameters if all_of_them else parameters // max(layers, 1))


def gathered(config: RunConfig, facts: ModelFacts, ranks: int) -> int:
    """Bytes of the weights that ZeRO-3 has put together."""
    if _stage(config) != 3 or ranks == 1:
        return 0
    live = min(facts.parameters, facts.parameters // max(facts.layers, 1) + _bucket(config))
    return live * DTYPE_BYTES[config.policy.base_dtype]


def _bucket(config: RunConfig) -> int:
    """ZeRO-2 has no tuning."""
    return _BUCKET[config.launch.zero_tuning if _stage(config) == 3 else "general"]


def _stage(config: RunConfig) -> int:
    return config.launch.zero_stage if config.launch.engine == "deepspeed" else 0
