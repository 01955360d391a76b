"""The size of the images and how they are decoded, in rollout and evaluation alike."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from atelier.config.digest import stage_digest
from atelier.config.image_size import latent_side
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import VaeConfig
from atelier.config.sections.rollout import RolloutConfig
from atelier.data.prompts import Prompt
from atelier.errors import ConfigError
from atelier.policies.base import Part, Sample
from atelier.policies.sd3.policy import SD3Policy
from tests.support.runs import untrained_pipeline

SAMPLES = [Sample(i, 0, Prompt(0, 0, 'the word "KEM" in red', {})) for i in range(4)]
SD35 = {"sample_size": 128, "patch_size": 2, "pos_embed_max_size": 384}
VAE = {"block_out_channels": [128, 256, 512, 512]}


def sd3(**policy) -> SD3Policy:
    settings = PolicyConfig(path=str(untrained_pipeline()), max_sequence_length=16, **policy)
    rollout = RolloutConfig(num_inference_steps=4)
    evaluation = EvaluationConfig(num_inference_steps=4)
    return SD3Policy.load(RunConfig(policy=settings, rollout=rollout, evaluation=evaluation), "cpu")


@pytest.mark.parametrize(("pixels", "side"), [(None, 128), (512, 64), (1024, 128), (16, 2)])
def test_latents_of_sd35(pixels: int | None, side: int) -> None:
    assert latent_side(pixels, SD35, VAE) == side


@pytest.mark.parametrize("pixels", [500, 520, 8 * 2 * 385])
def test_a_size_the_model_has_no_place_for_is_refused(pixels: int) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.resolution: {pixels} pixels.*of 16.*6144"):
        latent_side(pixels, SD35, VAE)


def test_rollouts_and_evaluation_have_the_size_asked_for() -> None:
    policy = sd3(resolution=32)
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, SAMPLES)
    assert rollout.images.shape == (4, 32, 32, 3)
    assert rollout.record["latents"].shape[-2:] == (8, 8)
    images = policy.generate(policy.module, [Prompt(0, 0, "a")], [1]).images
    assert images.shape == (1, 32, 32, 3)
    replayed = policy.replay(policy.module, rollout, Part(slice(0, 1)), False)
    assert (replayed.log_prob - rollout.old_log_probs[:, :1]).abs().max() < 1e-6
    with pytest.raises(ConfigError, match=r"policy\.resolution: 128"):
        sd3(resolution=128)


def test_decoding_settings_reach_the_pixels_by_both_ways() -> None:
    plain, half, sliced = (
        sd3(vae=vae) for vae in (VaeConfig(), VaeConfig(dtype="bfloat16"), VaeConfig(slicing=True))
    )
    noise = plain.noise([1, 2])[:, 0]
    images = [one.decode(noise).wait().astype(int) for one in (plain, half, sliced)]
    assert 0 < np.abs(images[1] - images[0]).max() < 32
    assert np.abs(images[2] - images[0]).max() <= 1
    assert half._decoder._vae.dtype == torch.bfloat16


def test_rollout_and_evaluation_decode_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = sd3()
    seen: list[torch.Tensor] = []
    decode = policy._decoder.decode
    monkeypatch.setattr(
        policy._decoder, "decode", lambda latents: seen.append(latents) or decode(latents)
    )
    policy.begin_step(1)
    images = policy.rollout(policy.module, SAMPLES).images
    policy.generate(policy.module, [Prompt(0, 0, "a")], [1])
    assert np.array_equal(images, decode(seen[0]).wait())
    assert len(seen) == 2


@pytest.mark.parametrize(
    "setting",
    ["vae.dtype=bfloat16", "vae.tiling=true", "resolution=32", "text.dtype=float16"],
)
def test_what_changes_the_pixels_changes_the_identity_of_the_stages(setting: str) -> None:
    plain, changed = (
        resolve("tiny/base", own, Path(os.devnull)) for own in ([], [f"policy.{setting}"])
    )
    for stage in ("baseline", "train", "evaluate"):
        assert stage_digest(plain, stage) != stage_digest(changed, stage)


@pytest.mark.parametrize("setting", ["text.disk_gigabytes=1", "text.memory_gigabytes=1"])
def test_where_embeddings_are_kept_changes_no_identity(setting: str) -> None:
    plain, changed = (
        resolve("tiny/base", own, Path(os.devnull)) for own in ([], [f"policy.{setting}"])
    )
    assert stage_digest(plain, "train") == stage_digest(changed, "train")
