"""What is held and computed in which dtype, and recomputed activations."""

from __future__ import annotations

import pytest
import torch

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import LoraConfig, PolicyConfig
from atelier.config.sections.rollout import RolloutConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Part, Sample
from atelier.policies.sd3.policy import SD3Policy
from tests.support.runs import untrained_pipeline

LORA = {"trainable": "lora", "lora": LoraConfig(rank=4, alpha=8)}
SAMPLES = [Sample(i, 0, Prompt(0, 0, 'the word "KEM" in red', {})) for i in range(8)]
SIXTEEN = ["bfloat16", "float16"]


def sd3(**policy) -> SD3Policy:
    settings = PolicyConfig(path=str(untrained_pipeline()), max_sequence_length=16, **policy)
    rollout = RolloutConfig(num_inference_steps=4, noise_level=0.8, guidance_scale=2.0)
    return SD3Policy.load(RunConfig(policy=settings, rollout=rollout), "cpu")


def replay(policy: SD3Policy, with_reference: bool = False):
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, SAMPLES)
    return rollout, policy.replay(policy.module, rollout, Part(slice(0, 1)), with_reference)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_frozen_base_is_held_in_16_bit_and_what_is_trained_in_32(dtype: str) -> None:
    policy = sd3(**LORA, dtype=dtype, base_dtype=dtype)
    trained = policy.trainable()
    assert {one.dtype for one in trained.values()} == {torch.float32}
    frozen = {name: one.dtype for name, one in policy.module.named_parameters()}
    assert {frozen[name] for name in set(frozen) - set(trained)} == {getattr(torch, dtype)}

    rollout, replayed = replay(policy, with_reference=True)
    assert rollout.record["latents"].dtype == rollout.old_log_probs.dtype == torch.float32
    assert (replayed.log_prob - rollout.old_log_probs[:, :1]).abs().max() < 1e-6
    assert torch.equal(replayed.statistics["velocity"], replayed.statistics["reference_velocity"])
    replayed.log_prob.sum().backward()
    gradients = [one.grad for one in trained.values() if one.grad is not None]
    assert {one.dtype for one in gradients} == {torch.float32}
    assert any(one.any() for one in gradients)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_16_bit_base_computes_what_autocast_does(dtype: str) -> None:
    held, cast, full = (
        sd3(**LORA, **own) for own in ({"dtype": dtype, "base_dtype": dtype}, {"dtype": dtype}, {})
    )
    velocities = [replay(one, True)[1].statistics["velocity"] for one in (held, cast, full)]
    rounding = (velocities[1] - velocities[2]).abs().mean()
    assert rounding > 0, "autocast computed in 32 bit"
    assert (velocities[0] - velocities[1]).abs().mean() < 2 * rounding


@pytest.mark.parametrize("trained", [LORA, {"trainable": "full"}], ids=["lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputed_activations_give_the_same_gradients(trained, dtype: str) -> None:
    results = []
    for checkpointing in (False, True):
        policy = sd3(**trained, dtype=dtype, gradient_checkpointing=checkpointing)
        for parameter in policy.trainable().values():  # B is no longer zero: A gets a gradient
            parameter.data += 0.01
        _, replayed = replay(policy)
        passes = []
        block = policy.module.transformer_blocks[0]
        handle = block.register_forward_pre_hook(lambda *_, seen=passes: seen.append(1))
        replayed.log_prob.sum().backward()
        handle.remove()
        assert len(passes) == int(checkpointing), "the block runs again in backward, once"
        results.append({name: one.grad for name, one in policy.trainable().items()})
    kept, recomputed = results
    assert any(one is not None and one.any() for one in kept.values())
    for name, gradient in kept.items():
        other = recomputed[name]
        assert (gradient is None) == (other is None), name
        assert gradient is None or torch.allclose(gradient, other, rtol=1e-5, atol=1e-9), name
