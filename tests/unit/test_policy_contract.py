"""What every policy must hold for the loop to mean anything, shown on a flow and a token policy."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from atelier.algorithms.kl import KL_FORMS
from atelier.config.schema import RunConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.policy import LoraConfig, PolicyConfig
from atelier.config.sections.rollout import RolloutConfig
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene, SceneObject, to_dict
from atelier.policies import embedding_cache
from atelier.policies.base import Policy, Sample
from atelier.policies.deepgen.policy import DeepGenPolicy
from atelier.policies.janus.loading import Checkpoint
from atelier.policies.janus.pixels import normalise_codebook
from atelier.policies.janus.policy import JanusPolicy
from atelier.policies.qwen.policy import QwenPolicy
from atelier.policies.sd3.policy import SD3Policy
from tests.support import random_janus, random_qwen
from tests.support.runs import random_deepgen_model, untrained_pipeline
from tests.support.toy_completions import ToyCompletions
from tests.support.toy_token_policy import ToyTokenPolicy

SOURCE = {"source_scene": to_dict(Scene((SceneObject("circle", "red", (1, 1)),)))}
PROMPTS = [
    Prompt(0, 0, 'the word "KEM" in red', SOURCE),
    Prompt(1, 0, "a blue circle and a square", SOURCE),
]


@pytest.fixture(scope="module", autouse=True)
def _embeddings_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of all policies together: most of a tiny one's time goes into loading its text encoders."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding_cache, "CACHE", str(tmp_path_factory.mktemp("embeddings")))
        yield


def sd3(**settings) -> SD3Policy:
    policy = PolicyConfig(
        path=str(untrained_pipeline()),
        max_sequence_length=16,
        text={"disk_gigabytes": 0.1},
        **settings.pop("policy", {}),
    )
    rollout = RolloutConfig(**{"num_inference_steps": 4, **settings})
    evaluation = EvaluationConfig(num_inference_steps=4)
    return SD3Policy.load(RunConfig(policy=policy, rollout=rollout, evaluation=evaluation), "cpu")


def deepgen(**settings) -> DeepGenPolicy:
    """A random one; both prompts differ in length, so there is padding."""
    policy = {
        "family": "deepgen",
        "path": str(random_deepgen_model()),
        **settings.pop("policy", {}),
    }
    sections = {
        "policy": policy,
        "rollout": {"num_inference_steps": 4, "noise_level": 0.8, **settings},
        "evaluation": {"num_inference_steps": 3, "guidance_scale": 2.0},
    }
    return DeepGenPolicy.load(RunConfig.model_validate(sections), "cpu")


def janus(policy=None, **rollout) -> JanusPolicy:
    """A random one; answers are long enough to end in different places."""
    sections = {
        "policy": {"family": "janus", **(policy or {})},
        "rollout": {"guidance_scale": 3.0, **rollout},
        "evaluation": {"guidance_scale": 3.0},
        "algorithm": {"kl": "k3"},
    }
    checkpoint = copy.deepcopy(random_checkpoint())
    return JanusPolicy(checkpoint, RunConfig.model_validate(sections), torch.device("cpu"))


@functools.cache
def random_checkpoint() -> Checkpoint:
    checkpoint = Checkpoint(random_janus.build_model(), random_janus.build_processor())
    normalise_codebook(checkpoint.model.model.vqmodel.quantize.embedding)
    return checkpoint


def introspective(version: str, **settings) -> JanusPolicy:
    told = {"version": version, "answer_tokens": 12, **settings}
    return janus(kind="introspect", introspection=told)


def qwen(kind: random_qwen.Kind = "text", policy=None, **rollout) -> QwenPolicy:
    """A random one whose completions end in different places, if at all."""
    sections = {
        "policy": {"family": "qwen", "resolution": random_qwen.SIDE, **(policy or {})},
        "rollout": {
            "kind": "edit" if kind == "edit" else "draw",
            "num_inference_steps": 2,
            "completion": {"max_tokens": 12},
            "environment": {"condition_side": 64, "reference_side": 64},
            **rollout,
        },
        "evaluation": {"num_inference_steps": 2, "guidance_scale": 2.0},
        "algorithm": {"kl": "k3"},
    }
    pipeline = random_qwen.build_pipeline(kind)
    with torch.no_grad():
        pipeline.text_encoder.lm_head.weight[random_qwen.END] *= 2
    config = RunConfig.model_validate(sections)
    return QwenPolicy(pipeline.text_encoder, pipeline, config, torch.device("cpu"))


POLICIES = {
    "sd3-cps": lambda: sd3(noise_level=0.8),
    "sd3-sde": lambda: sd3(dynamics="flow_sde", noise_level=0.3),
    "sd3-guided": lambda: sd3(guidance_scale=3.0),
    "sd3-lora": lambda: sd3(policy={"trainable": "lora", "lora": LoraConfig(rank=4, alpha=8)}),
    "sd3-fast": lambda: sd3(policy={"transformer": "fast"}, guidance_scale=3.0),
    "sd3-dance": lambda: sd3(dynamics="dance_sde", noise_level=0.3),
    "sd3-guard": lambda: sd3(dynamics="flow_sde", noise_level=0.3, log_prob="ratio_norm"),
    "sd3-groups": lambda: sd3(
        num_inference_steps=8, window={"strategy": "random", "size": 2, "scope": "group"}
    ),
    # At step 1 the steps 1, 2 and 4: side by side, and apart.
    "sd3-fraction": lambda: sd3(
        num_inference_steps=8, noise_level=1.0, window={"strategy": "fraction", "fraction": 0.4}
    ),
    "sd3-last": lambda: sd3(
        dynamics="dance_sde",
        noise_level=0.3,
        num_inference_steps=5,
        window={"strategy": "fraction", "fraction": 1.0, "include_last": True},
    ),
    "sd3-flash": lambda: sd3(
        num_inference_steps=8,
        window={"strategy": "progressive", "size": 2},
        schedule="linear_shift",
        tail=0.5,
    ),
    "sd3-nft": lambda: sd3(num_inference_steps=4, dynamics="ode", solver="dpm_solver"),
    "sd3-nft-euler": lambda: sd3(dynamics="ode", level_share=0.5),
    "sd3-shared-start": lambda: sd3(noise_level=0.8, shared_start=True),
    "sd3-resolution": lambda: sd3(schedule="resolution_shift", lowest_level=0.02),
    "deepgen": deepgen,
    "deepgen-guided": lambda: deepgen(guidance_scale=3.0, dynamics="flow_sde", noise_level=0.3),
    "deepgen-connector": lambda: deepgen(policy={"trainable": "dit_connector"}, guidance_scale=2.0),
    "deepgen-lora": lambda: deepgen(
        policy={"trainable": "lora", "lora": {"rank": 4, "alpha": 8}}, guidance_scale=2.0
    ),
    "deepgen-edit": lambda: deepgen(kind="edit", guidance_scale=2.0),
    "deepgen-fast": lambda: deepgen(
        kind="edit",
        guidance_scale=2.0,
        policy={"transformer": "fast", "trainable": "lora", "lora": {"rank": 4, "alpha": 8}},
    ),
    "deepgen-nft": lambda: deepgen(dynamics="ode"),
    "token": lambda: ToyTokenPolicy(1),
    "completions": lambda: ToyCompletions(1),
    "janus": janus,
    "janus-lora": lambda: janus({"trainable": "lora", "lora": {"rank": 4, "alpha": 8}}),
    "janus-conditional": lambda: janus(tokens={"log_prob": "conditional"}),
    "janus-sampler": lambda: janus(tokens={"log_prob": "sampler", "top_k": 20, "top_p": 0.9}),
    "janus-unguided": lambda: janus(guidance_scale=1.0),
    "janus-edit": lambda: janus(kind="edit"),
    "janus-v1": lambda: introspective("v1"),
    "janus-v3": lambda: introspective("v3", train_end=False),
    "janus-three-rounds": lambda: introspective("v1", rounds=3, restricted_first_token=True),
    "qwen": qwen,
    "qwen-lora": lambda: qwen(
        policy={"trainable": "lora", "lora": {"rank": 4, "alpha": 8}}, guidance_scale=3.0
    ),
    "qwen-edit": lambda: qwen(
        "edit", {"trainable": "lora", "lora": {"rank": 4, "alpha": 8}}, guidance_scale=3.0
    ),
    "qwen-edit-full": lambda: qwen("edit", shared_start=True),
    "qwen-sampler": lambda: qwen(
        completion={"max_tokens": 5, "temperature": 0.8, "top_p": 0.9, "log_prob": "sampler"}
    ),
}


@pytest.fixture(params=POLICIES, name="policy")
def _policy(request: pytest.FixtureRequest) -> Policy:
    torch.set_num_threads(1)
    return POLICIES[request.param]()


def samples(count: int = 8) -> list[Sample]:
    return [Sample(i, i // 4, PROMPTS[i // 4]) for i in range(count)]


def what_is_trained(replays) -> torch.Tensor:
    """What a loss is made of: log-probs [B, A], or velocities [B, A, ...]."""
    first = replays[0]
    if first.log_prob is not None:
        return torch.cat([one.log_prob for one in replays], dim=1)
    return torch.cat([one.statistics["velocity"] for one in replays], dim=1)


def as_sampled(rollout, replays) -> torch.Tensor:
    if rollout.old_log_probs is not None:
        return rollout.old_log_probs
    return torch.cat([one.statistics["behaviour_velocity"] for one in replays], dim=1)


def replayed(policy: Policy, rollout, with_reference: bool = False):
    return [
        policy.replay(policy.module, rollout, part, with_reference)
        for part in policy.parts(rollout)
    ]


def test_replay_repeats_the_rollout(policy: Policy) -> None:
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    replays = replayed(policy, rollout)
    trained, sampled = what_is_trained(replays), as_sampled(rollout, replays)
    assert trained.shape == sampled.shape
    assert trained.shape[:2] == (8, rollout.actions)
    difference = (trained - sampled).abs()
    if rollout.mask is not None:
        difference = difference[rollout.mask]
    # A token's keys and values are cached, in other sums than a whole sequence's.
    caches = isinstance(policy, (JanusPolicy, QwenPolicy))
    assert difference.max() < (1e-5 if caches else 1e-6)
    assert trained.requires_grad


def test_a_stored_rollout_replays_the_same_bits(policy: Policy) -> None:
    """Also when the policy has gone on to another step meanwhile."""
    policy.begin_step(3)
    rollout = policy.rollout(policy.module, samples())
    packed = {name: tensor.clone() for name, tensor in policy.pack(rollout).items()}
    policy.begin_step(4)
    again = policy.unpack(rollout.samples, packed)
    assert again.actions == rollout.actions
    ours, theirs = replayed(policy, rollout), replayed(policy, again)
    assert torch.equal(what_is_trained(ours), what_is_trained(theirs))
    assert torch.equal(as_sampled(rollout, ours), as_sampled(again, theirs))


def test_a_token_policy_replays_a_whole_segment_at_once(policy: Policy) -> None:
    """So that a ratio may be one of a sequence; others have none."""
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    if "k3" in policy.kl_forms:
        found = [(part.segment, part.actions) for part in policy.parts(rollout)]
        assert found == list(enumerate(rollout.all_segments()))
    else:
        assert rollout.ended is None


def test_what_has_no_end_used_all_it_had(policy: Policy) -> None:
    policy.begin_step(2)
    rollout = policy.rollout(policy.module, samples())
    again = policy.unpack(rollout.samples, policy.pack(rollout))
    if rollout.ended is None:
        assert again.ended is None
        return
    assert rollout.ended.shape == (8, len(rollout.all_segments()))
    assert torch.equal(again.ended, rollout.ended)
    assert bool((~rollout.ended).any())
    for segment, ended in enumerate(rollout.ended.T):
        trained, longest = rollout.trained_count(segment), rollout.longest_segment(segment)
        assert bool((trained[~ended] == longest).all())
        assert bool((trained <= longest).all())


def test_every_trained_parameter_can_get_a_gradient(policy: Policy) -> None:
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    what_is_trained(replayed(policy, rollout)).sum().backward()
    with_gradient = [p for p in policy.trainable().values() if p.grad is not None and p.grad.any()]
    # A new adapter A gets none, since its B is zero, nor does what one layer leaves unused.
    assert len(with_gradient) >= len(policy.trainable()) // 3


def test_images_depend_on_sample_ids_and_not_on_their_batch(policy: Policy) -> None:
    policy.begin_step(1)
    whole = policy.rollout(policy.module, samples())
    reordered = policy.rollout(policy.module, samples()[::-1])
    difference = np.abs(whole.images.astype(int) - reordered.images[::-1].astype(int))
    assert difference.max() <= 1
    assert len(np.unique(whole.images.reshape(8, -1), axis=0)) > 4, "noise must differ by sample"


def test_a_group_may_share_the_noise_it_starts_from() -> None:
    """Then only what stochastic steps add tells its images apart."""
    still = sd3(noise_level=0.0, shared_start=True)
    still.begin_step(1)
    groups = still.rollout(still.module, samples()).images.reshape(2, 4, -1)
    assert all(len(np.unique(group, axis=0)) == 1 for group in groups)
    assert not np.array_equal(groups[0, 0], groups[1, 0])
    lively = sd3(noise_level=0.8, shared_start=True)
    lively.begin_step(1)
    images = lively.rollout(lively.module, samples()).images.reshape(8, -1)
    assert len(np.unique(images, axis=0)) > 4


def test_a_finished_image_is_trained_at_levels_of_its_own() -> None:
    """Each sample's levels are distinct, of the rollout's, and as many as level_share says; what is
    noised is the image's own latent."""
    policy = sd3(num_inference_steps=10, dynamics="ode", solver="dpm_solver", level_share=0.99)
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    replays = replayed(policy, rollout)
    assert rollout.actions == len(replays) == 9
    levels = torch.cat([one.statistics["level"] for one in replays], dim=1)
    sigmas = policy._schedules.of_scheduler(10).steps
    known = torch.tensor([step.sigma for step in sigmas])
    for row in levels:
        assert len(set(row.tolist())) == 9
        assert all(torch.isclose(known, level).any() for level in row)
    assert len({tuple(row.tolist()) for row in levels}) > 4
    for replay in replays:
        said = {name: value[:, 0] for name, value in replay.statistics.items()}
        level = said["level"].reshape(-1, 1, 1, 1)
        noise = (said["noisy"] - (1 - level) * said["clean"]) / level
        assert abs(noise.mean()) < 0.1
        assert abs(noise.std() - 1) < 0.1
    images = policy.decode(said["clean"]).wait()
    assert np.array_equal(images, rollout.images)


def test_steps_draw_other_noise(policy: Policy) -> None:
    policy.begin_step(1)
    first = policy.rollout(policy.module, samples()).images
    policy.begin_step(2)
    assert not np.array_equal(first, policy.rollout(policy.module, samples()).images)
    policy.begin_step(1)
    assert np.array_equal(first, policy.rollout(policy.module, samples()).images)


def test_the_reference_is_the_policy_before_training(policy: Policy) -> None:
    policy.prepare_reference()
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    for part in replayed(policy, rollout, with_reference=True):
        for form in policy.kl_forms:
            assert KL_FORMS[form](part.statistics).abs().max() < 1e-10
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(0.05)
    for form in policy.kl_forms:
        moved = [
            KL_FORMS[form](part.statistics).mean()
            for part in replayed(policy, rollout, with_reference=True)
        ]
        assert sum(moved) > 0
        assert sum(moved).requires_grad


def test_evaluation_images_are_fixed_by_their_keys(policy: Policy) -> None:
    first = policy.generate(policy.module, PROMPTS, [5, 6]).images
    assert first.dtype == np.uint8
    assert np.array_equal(first, policy.generate(policy.module, PROMPTS, [5, 6]).images)
    assert not np.array_equal(first, policy.generate(policy.module, PROMPTS, [7, 8]).images)
    twice = policy.generate(policy.module, [PROMPTS[0]] * 2, [5, 7]).images
    assert not np.array_equal(twice[0], twice[1])
    assert np.abs(twice[0].astype(int) - first[0]).max() <= 1, "an image is its prompt's and key's"


def test_a_fresh_module_takes_the_trained_tensors(policy: Policy) -> None:
    names = set(policy.trainable())
    assert names
    assert names <= {name for name, _ in policy.fresh_module().named_parameters()}


def test_sd3_generates_what_the_plain_pipeline_generates() -> None:
    policy = sd3()
    texts = [prompt.text for prompt in PROMPTS]
    ours = policy.generate(policy.module, PROMPTS, [1, 2]).images
    pipeline = StableDiffusion3Pipeline.from_pretrained(untrained_pipeline())
    plain = pipeline(
        texts,
        num_inference_steps=4,
        guidance_scale=1.0,
        latents=policy.noise([1, 2])[:, 0],
        output_type="np",
    ).images
    assert np.abs((plain * 255).round() - ours).max() <= 1


def test_outside_the_window_the_rollout_is_the_deterministic_sampler() -> None:
    """With noise 0 inside it too, a rollout draws the evaluation's images."""
    policy = sd3(noise_level=0.0)
    policy.begin_step(1)
    batch = samples()
    rollout = policy.rollout(policy.module, batch)
    from atelier.data.keys import key

    noise = policy.noise([key("rollout", 1, 1, one.index) for one in batch], 3)[:, 0]
    images = policy.generate_from(policy.module, [one.prompt for one in batch], noise)
    assert np.abs(images.astype(int) - rollout.images.astype(int)).max() <= 1


def test_a_window_of_all_steps_is_full_training() -> None:
    """Same rollouts, log-probs and gradients, bit for bit."""
    full = sd3(window={"strategy": "all"})
    fast = sd3(window={"strategy": "fast", "size": 3, "range": (0, 3)})
    results = []
    for policy in (full, fast):
        policy.begin_step(1)
        rollout = policy.rollout(policy.module, samples())
        sum(part.log_prob.sum() for part in replayed(policy, rollout)).backward()
        gradients = [parameter.grad for parameter in policy.trainable().values()]
        results.append((rollout, [g for g in gradients if g is not None]))
    (ours, our_gradients), (theirs, their_gradients) = results
    assert ours.old_log_probs.shape == (8, 3)
    assert torch.equal(ours.old_log_probs, theirs.old_log_probs)
    assert np.array_equal(ours.images, theirs.images)
    assert our_gradients
    assert all(torch.equal(a, b) for a, b in zip(our_gradients, their_gradients, strict=True))
