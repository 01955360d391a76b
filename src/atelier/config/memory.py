"""How much memory a rank needs on its device at most, estimated without loading the model.

A rank goes through four phases, and what is held all the time comes on top of each but the first:

    prompts   text encoders, freed before anything else is loaded
    rollout   a micro-batch through the transformer without gradients, or through the autoencoder
    replay    a micro-batch with gradients
    update    AdamW's intermediate values

    base          transformer in policy.base_dtype (float32 where it is trained)
    adapter       4 B x its parameters
    reference     4 B x parameters, where everything is trained and beta > 0 (an adapter is off)
    autoencoder   in policy.vae.dtype
    gradients     4 B x trained
    buckets       4 B x trained: DDP's copies that travel between ranks
    optimizer     8 B x trained (AdamW's moments), and ZeRO's own 4 B masters
    experience    a step's images on this rank: latents and noise of the window (or the clean
                  latent and a velocity for every level), and embeddings

ZeRO-2 shares gradients and optimizer among the ranks, ZeRO-3 weights too; with offload the
optimizer and its gradients lie in main memory. Moving averages always do.

Activations, in values a token and channel of the compute dtype, are measured on SD3.5-Medium under
autocast at 512x512 (spec performance 1 and 2): 27 a layer with gradients (batch 8, 16 and 24: 30.7,
48.8 and 66.8 GiB), 18 in all without. With gradient checkpointing one a layer is kept, and one
layer's are there at a time. 32-bit weights under autocast are cast to 16 bit, and a backward pass
keeps the copies. It is an estimate to choose a machine by: the CUDA context and what the allocator
cannot use come on top. benchmarks/memory.py measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atelier.config.model_facts import ModelFacts
from atelier.config.schema import RunConfig

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_VALUES_WITH_GRADIENT = 27  # a token, channel and layer
_VALUES_WITHOUT = 18  # a token and channel, whatever the number of layers
_DECODED_TENSORS = 4  # of the autoencoder's widest activation at the image's full size
_ZERO_BUCKETS = 2 * 4 * 50_000_000  # reduce and gather, configs/deepspeed
_LIVE_PARAMETERS = 50_000_000  # that ZeRO-3 prefetches beside the block it is at


@dataclass(frozen=True)
class Memory:
    """Estimated bytes of a rank: held all the time, on top in each phase, and in main memory."""

    held: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]
    host: Mapping[str, int]

    def at(self, phase: str) -> int:
        """Bytes on the device in a phase. Nothing is held yet while prompts are encoded."""
        held = 0 if phase == "prompts" else sum(self.held.values())
        return held + sum(self.phases[phase].values())

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=self.at)

    @property
    def peak(self) -> int:
        """Bytes on the device at the worst moment."""
        return self.at(self.peak_phase)


def estimate(config: RunConfig, facts: ModelFacts, images: int, actions: int, ranks: int) -> Memory:
    """Bytes each of `ranks` needs when it holds `images` images of a step, each trained on
    `actions` times. See the module."""
    lora = config.policy.trainable == "lora"
    trained = facts.adapter_parameters if lora else facts.parameters
    engine, host = _engine(config, trained, ranks)
    average = {"moving average": 4 * trained} if config.train.ema.enabled else {}
    if config.algorithm.keeps_behaviour:  # and the trained ones, while they are in their place
        average["weights that sample"] = 8 * trained
    temporaries = 0 if host else 4 * trained // _shards(config, ranks)
    return Memory(
        held={
            **_weights(config, facts, trained, ranks),
            **engine,
            "experience": _experience(config, facts, images, actions),
        },
        phases={
            "prompts": {
                "text encoders": facts.text_parameters * _DTYPE_BYTES[config.policy.text.dtype]
            },
            "rollout": {
                **_casts(config, facts, ranks, backward=False),
                "activations or decoding": max(_inference(config, facts), _decoding(config, facts)),
            },
            "replay": {
                **_casts(config, facts, ranks, backward=True),
                "activations": _activations(config, facts),
            },
            "update": {"optimizer's temporaries": temporaries},
        },
        host={**host, **average},
    )


def _stage(config: RunConfig) -> int:
    return config.launch.zero_stage if config.launch.engine == "deepspeed" else 0


def _shards(config: RunConfig, ranks: int) -> int:
    """Among how many ranks the optimizer's state is shared out."""
    return ranks if _stage(config) else 1


def _weights(config: RunConfig, facts: ModelFacts, trained: int, ranks: int) -> dict[str, int]:
    policy = config.policy
    lora = policy.trainable == "lora"
    shards = ranks if _stage(config) == 3 else 1
    copied = not lora and config.algorithm.beta > 0
    return {
        "base": facts.parameters * _DTYPE_BYTES[policy.base_dtype] // shards,
        "adapter": 4 * trained // shards if lora else 0,
        "reference": 4 * facts.parameters if copied else 0,
        "autoencoder": facts.vae_parameters * _DTYPE_BYTES[policy.vae.dtype],
    }


def _engine(config: RunConfig, trained: int, ranks: int) -> tuple[dict[str, int], dict[str, int]]:
    """What training holds on the device, and in main memory."""
    stage = _stage(config)
    own = trained // _shards(config, ranks)
    state = {"gradients": 4 * own, "optimizer": (12 if stage else 8) * own}
    if not stage:
        return {**state, "buckets": 4 * trained if ranks > 1 else 0}, {}
    buckets = {"buckets": min(_ZERO_BUCKETS, 8 * trained)}
    return (buckets, state) if config.launch.offload else ({**state, **buckets}, {})


def _experience(config: RunConfig, facts: ModelFacts, images: int, actions: int) -> int:
    steps = 2 if config.train.one_step_off else 1
    return 4 * images * (stored_latents(config, facts, actions) + facts.condition_values) * steps


def trained_actions(config: RunConfig) -> int:
    """Denoising steps, or noise levels, of an image that are trained. At most: a moving window is
    shorter at its end."""
    rollout = config.rollout
    if rollout.dynamics == "ode":
        return rollout.trained_levels
    low, high = rollout.window.bounds(rollout.num_inference_steps)
    return high - low if rollout.window.strategy == "all" else rollout.window.size


def stored_latents(config: RunConfig, facts: ModelFacts, actions: int) -> int:
    """Values kept of an image: latents as sampled and the noise they were made by; or the clean
    one and the velocities."""
    return (actions + 1) * facts.latent_values * (1 if config.rollout.dynamics == "ode" else 2)


def _casts(config: RunConfig, facts: ModelFacts, ranks: int, backward: bool) -> dict[str, int]:
    """16-bit copies of 32-bit weights, and under ZeRO-3 the weights that are put together."""
    policy = config.policy
    cast = policy.dtype != policy.base_dtype
    # Autocast remembers copies of what is trained; a backward pass needs those it does not remake.
    kept = policy.trainable == "full" or (backward and not policy.gradient_checkpointing)
    block = facts.parameters // max(facts.layers, 1)
    gathered = 0
    if _stage(config) == 3 and ranks > 1:
        live = min(facts.parameters, block + _LIVE_PARAMETERS)
        gathered = live * _DTYPE_BYTES[policy.base_dtype]
    return {
        "16-bit copies": 2 * (facts.parameters if kept else block) if cast else 0,
        "gathered weights": gathered,
    }


def _values(config: RunConfig, facts: ModelFacts) -> int:
    """Bytes of one value a token and channel of a micro-batch, both branches of guidance."""
    batch = config.rollout.micro_batch_size * (2 if config.rollout.guidance_scale > 1 else 1)
    return batch * facts.tokens * facts.width * _DTYPE_BYTES[config.policy.dtype]


def _inference(config: RunConfig, facts: ModelFacts) -> int:
    return _VALUES_WITHOUT * _values(config, facts)


def _activations(config: RunConfig, facts: ModelFacts) -> int:
    layer = _VALUES_WITH_GRADIENT * _values(config, facts)
    if config.policy.gradient_checkpointing:
        return layer + facts.layers * _values(config, facts)
    return layer * facts.layers


def _decoding(config: RunConfig, facts: ModelFacts) -> int:
    vae = config.policy.vae
    images = 1 if vae.slicing else config.rollout.micro_batch_size
    value = _DTYPE_BYTES[vae.dtype]
    return _DECODED_TENSORS * images * facts.pixels * facts.vae_channels * value
