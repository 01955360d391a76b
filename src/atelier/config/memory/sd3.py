"""What Stable Diffusion 3 needs besides weights and engine.

    prompts   text encoders, freed before anything else is loaded, or held all the time (prompts.py)
    rollout   a micro-batch through the transformer without gradients, or through the autoencoder
    evaluation   the same of held-out images, where some are made while training
    replay    a micro-batch with gradients
    pictures  captioned ones: a micro-batch through the autoencoder, then with gradients (train.sft)

    autoencoder   in policy.vae.dtype
    recorded passes   CUDA graphs of passes without gradients (policies/sd3/fast/graphs.py): their
                  activations, which all share, and what goes into one
    experience    latents and noise of the window (or the clean latent and a velocity for every
                  level)
    embeddings    of the prompts, a few of them or those of the step (prompts.py); those of a
                  micro-batch's rows, in float32, come on top

Activations, in values a token and channel of the compute dtype, are measured on SD3.5-Medium under
autocast at 512x512: 27 a layer with gradients (batch 8, 16 and 24: 30.7,
48.8 and 66.8 GiB), 18 in all without. With gradient checkpointing one a layer is kept, and one
layer's are there at a time. A fast transformer that is compiled keeps 14.9 a layer (batch 24: 37.2
GiB of a whole step; benchmarks/README.md).
"""

from __future__ import annotations

from collections.abc import Collection

from atelier.config.facts.sd3 import SD3Facts
from atelier.config.memory.connector import connector_kept
from atelier.config.memory.parts import Own, Together, copies, gathered, made_together
from atelier.config.memory.prompts import bytes_on_device, encoders_stay
from atelier.config.schema import RunConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES
from atelier.config.sft_rules import picture_micro_batch

_VALUES_WITH_GRADIENT = 27  # a token, channel and layer
_VALUES_OF_FAST = 14.9  # the same
_VALUES_WITHOUT = 18  # a token and channel, whatever the number of layers
_DECODED_TENSORS = 4  # of the autoencoder's widest activation at the image's full size


def sd3_memory(config: RunConfig, facts: SD3Facts, images: int, actions: int, ranks: int) -> Own:
    """See the module. `images` are those whose experience is kept."""
    policy = config.policy
    encoders = facts.text_parameters * DTYPE_BYTES[policy.text.dtype]
    phases = made_together(config)

    def rows(together: Together) -> int:
        return 4 * together.rows * facts.embedding_values

    def at_hand(backward: bool) -> dict[str, int]:
        kept = policy.trainable != "lora" or (backward and not policy.gradient_checkpointing)
        return {
            "16-bit copies": copies(policy, facts.parameters, facts.layers, all_of_them=kept),
            "gathered weights": gathered(config, facts, ranks),
        }

    return Own(
        held={
            "autoencoder": facts.vae_parameters * DTYPE_BYTES[policy.vae.dtype],
            "experience": 4 * images * stored_latents(config, facts, actions),
            "embeddings": bytes_on_device(config, facts, images),
            "recorded passes": _recorded(config, facts, [one.rows for one in phases.values()]),
            "text encoders": encoders if encoders_stay(config, facts) else 0,
        },
        phases={
            "prompts": {"text encoders": encoders},
            **{
                phase: {
                    **at_hand(backward=False),
                    "rows of embeddings": rows(one),
                    "activations or decoding": max(
                        _inference(config, facts, one.rows),
                        _autoencoding(config, facts, one.images),
                    ),
                }
                for phase, one in phases.items()
            },
            "replay": {
                **at_hand(backward=True),
                "rows of embeddings": rows(phases["rollout"]),
                "activations": _kept(config, facts, phases["rollout"].rows),
            },
            **_pictures(config, facts, at_hand(backward=True)),
        },
    )


def _pictures(
    config: RunConfig, facts: SD3Facts, at_hand: dict[str, int]
) -> dict[str, dict[str, int]]:
    """The phase of captioned pictures, which have no guidance, where there are any."""
    if not config.train.sft.enabled:
        return {}
    batch = picture_micro_batch(config)
    activations = _kept(config, facts, batch)
    encoding = _autoencoding(config, facts, batch)
    rows = 4 * batch * facts.embedding_values
    needed = {"rows of embeddings": rows, "activations or encoding": max(activations, encoding)}
    return {"pictures": {**at_hand, **needed}}


def stored_latents(config: RunConfig, facts: SD3Facts, actions: int) -> int:
    """Values kept of an image: latents as sampled and the noise they were made by; or the clean
    one and the velocities. At most: of steps that lie apart, the latents on both sides are kept."""
    rollout = config.rollout
    if rollout.dynamics == "ode":
        return (actions + 1) * facts.latent_values
    apart = rollout.window.strategy == "fraction"
    latents = min(2 * actions, rollout.num_inference_steps + 1) if apart else actions + 1
    return (latents + actions + 1) * facts.latent_values


def _row(config: RunConfig, facts: SD3Facts) -> int:
    """Bytes of one value a token and channel of one image."""
    return facts.tokens * facts.width * DTYPE_BYTES[config.policy.dtype]


def _inference(config: RunConfig, facts: SD3Facts, rows: int) -> int:
    return _VALUES_WITHOUT * rows * _row(config, facts)


def _recorded(config: RunConfig, facts: SD3Facts, shapes: Collection[int]) -> int:
    """Bytes that no other phase can use: of passes over so many rows each, once a shape."""
    if not (config.policy.family == "sd3" and _compiled(config)):
        return 0
    inputs = 4 * sum({*shapes}) * (facts.condition_values + facts.latent_values)
    return _inference(config, facts, max(shapes)) + inputs


def _compiled(config: RunConfig) -> bool:
    policy = config.policy
    is_fast = policy.transformer == "fast" and policy.compile is not False
    return is_fast and config.launch.device != "cpu"


def _kept(config: RunConfig, facts: SD3Facts, rows: int) -> int:
    """Activations of a backward pass over so many images."""
    values = rows * _row(config, facts)
    layer = int((_VALUES_OF_FAST if _compiled(config) else _VALUES_WITH_GRADIENT) * values)
    layers = facts.layers * (values if config.policy.gradient_checkpointing else layer)
    once = layer if config.policy.gradient_checkpointing else 0
    return once + layers + connector_kept(config, facts, rows)


def _autoencoding(config: RunConfig, facts: SD3Facts, batch: int) -> int:
    """Images to latents, or the other way."""
    vae = config.policy.vae
    images = 1 if vae.slicing else batch
    value = DTYPE_BYTES[vae.dtype]
    return _DECODED_TENSORS * images * facts.pixels * facts.vae_channels * value
