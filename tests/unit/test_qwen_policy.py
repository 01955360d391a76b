"""The policy that writes for Qwen-Image: what it reads, writes, paints, and refuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from atelier.config.schema import RunConfig
from atelier.data.ground_truth import source_image
from atelier.data.keys import key
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene, SceneObject, to_dict
from atelier.errors import CheckpointError, ConfigError, DataError
from atelier.policies.base import Rollout, Sample
from atelier.policies.language.adapters import trained
from atelier.policies.qwen.environment import Sampling
from atelier.policies.qwen.loading import painting_device
from atelier.policies.qwen.noise import latents
from atelier.policies.qwen.policy import QwenPolicy
from atelier.policies.qwen.shuffling import of_other_prompts
from atelier.training.weights import copies, put_weights
from tests.support.random_qwen import END, SIDE, Kind, build_pipeline

COLOURS = ("red", "blue", "green")
PROMPTS = [
    Prompt(
        number,
        0,
        f"a {colour} circle",
        {"source_scene": to_dict(Scene((SceneObject("square", colour, (1, 1)),)))},
    )
    for number, colour in enumerate(COLOURS)
]
ADAPTER = {"trainable": "lora", "lora": {"rank": 4, "alpha": 8}}
TOKENS = 12


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make(
    opened: Kind = "text",
    texts: Sequence[str] = (),
    policy: dict | None = None,
    evaluation: dict | None = None,
    device: str = "cpu",
    **rollout: object,
) -> QwenPolicy:
    sections = {
        "policy": {"family": "qwen", "resolution": SIDE, **(policy or {})},
        "rollout": {
            "kind": "edit" if opened == "edit" else "draw",
            "num_inference_steps": 2,
            "completion": {"max_tokens": TOKENS},
            "environment": {"condition_side": 64, "reference_side": 64},
            **rollout,
        },
        "evaluation": {"num_inference_steps": 2, **(evaluation or {})},
        "algorithm": {"kl": "k3"},
    }
    own = build_pipeline(opened)
    config = RunConfig.model_validate(sections)
    encoder, own.text_encoder = own.text_encoder, None
    return QwenPolicy(encoder, own, config, torch.device(device), texts)


def rolled_out(policy: QwenPolicy, prompts: Sequence[Prompt] = PROMPTS) -> Rollout:
    policy.begin_step(1)
    samples = [Sample(index, index, prompt) for index, prompt in enumerate(prompts)]
    return policy.rollout(policy.module, samples)


# What is written --------------------------------------------------------------------------------


def test_room_beside_a_source_image_is_known_before_one_is_read() -> None:
    """Sources are squares: the longest prompt with its image fits, or the policy does not open."""
    texts = [one.text for one in PROMPTS]
    kept = max(one.chat.kept for one in make("edit").tools.read(PROMPTS))
    policy = make("edit", texts, conditioning={"window": kept + TOKENS + 1})
    assert len(rolled_out(policy).completions or ()) == len(PROMPTS)
    with pytest.raises(ConfigError, match=r"max_tokens: 12, and .*tokens of its source image 11 "):
        make("edit", texts, conditioning={"window": kept + TOKENS})


def test_a_rollout_says_what_was_written_and_how_it_ended() -> None:
    policy = make()
    with torch.no_grad():
        policy.module.encoder.lm_head.weight[END] *= 2
    rollout = rolled_out(policy, [PROMPTS[0]] * 16)
    assert rollout.ended is not None
    assert rollout.mask is not None
    assert 2 < int(rollout.ended.sum()) < 15
    assert rollout.longest == (TOKENS,)
    assert rollout.completions is not None
    for row, words in enumerate(rollout.completions):
        tokens = rollout.record["tokens"][row][rollout.mask[row]].tolist()
        assert words == policy.tools.chat.text(tokens)
        assert "<|" not in words
    cut = rollout.without_truncated()
    assert torch.equal(cut.mask.any(1), rollout.ended[:, 0])


def test_every_sample_of_every_step_writes_something_else() -> None:
    policy = make()
    samples = [Sample(index, 0, PROMPTS[0]) for index in range(4)]
    written = set()
    for step in (1, 2):
        policy.begin_step(step)
        written |= set(policy.rollout(policy.module, samples).completions or ())
    assert len(written) == 8


def test_an_edit_shows_rewards_what_the_policy_saw() -> None:
    rollout = rolled_out(make("edit"))
    assert rollout.sources is not None
    for one, prompt in zip(rollout.sources, PROMPTS, strict=True):
        assert one.size == (SIDE, SIDE)
        whole = source_image(prompt)
        assert whole is not None
        near = np.asarray(whole.resize((SIDE, SIDE))).astype(int) - np.asarray(one)
        assert np.abs(near).mean() < 4
    assert rolled_out(make()).sources is None


def test_a_prompt_is_read_alike_before_a_completion_and_for_the_image() -> None:
    """Also its source image: the same tokens and pixels, and the same text before it."""
    policy = make("edit")
    seen = []
    conditioning = policy.tools.painter._conditioning

    def watching(encoder, prompts, completions=None):
        seen.extend(zip(prompts, completions, strict=True))
        return conditioning(encoder, prompts, completions)

    policy.tools.painter._conditioning = watching
    rollout = rolled_out(policy)
    for row, (prompt, completion) in enumerate(seen):
        assert prompt is rollout.record["prompts"][row]
        assert "Picture 1: " in policy.tools.chat.tokenizer.decode(prompt.ids)
        assert prompt.image > 0
        own = rollout.record["tokens"][row][rollout.mask[row]].tolist()
        assert list(completion) == own


def test_16_bits_compute_and_train() -> None:
    held = {"dtype": "bfloat16", "base_dtype": "bfloat16", **ADAPTER}
    policy = make(policy=held)
    policy.prepare_reference()
    rollout = rolled_out(policy)
    (part,) = policy.parts(rollout)
    replay = policy.replay(policy.module, rollout, part, with_reference=True)
    assert replay.log_prob.dtype == torch.float32
    gap = (replay.log_prob.detach() - rollout.old_log_probs)[rollout.mask].abs()
    assert float(gap.mean()) < 0.05
    replay.log_prob.sum().backward()
    assert all(one.grad is not None for one in policy.trainable().values())
    assert all(one.dtype == torch.float32 for one in policy.trainable().values())


# What is painted --------------------------------------------------------------------------------


def test_without_a_completion_it_is_the_plain_pipeline() -> None:
    """Prompt, negative prompt and guidance as diffusers' own: 2 grey levels of rounding."""
    policy = make(evaluation={"completions": "none", "guidance_scale": 3.0})
    made = policy.generate(policy.module, PROMPTS, [5, 6, 7])
    assert made.completions is None
    plain = build_pipeline("text")
    expected = plain(
        prompt=[one.text for one in PROMPTS],
        negative_prompt=[" "] * 3,
        true_cfg_scale=3.0,
        num_inference_steps=2,
        height=SIDE,
        width=SIDE,
        latents=latents([5, 6, 7], 16, SIDE // 8, SIDE // 8),
        max_sequence_length=1024,
        output_type="np",
    ).images
    assert np.abs((expected * 255).round() - made.images).max() <= 2


def test_a_completion_changes_the_image_and_is_given_back() -> None:
    images, words = {}, {}
    for which in ("own", "none", "shuffled"):
        policy = make(evaluation={"completions": which, "micro_batch_size": 3})
        made = policy.generate(policy.module, PROMPTS, [5, 6, 7])
        images[which], words[which] = made.images.astype(int), made.completions
    pairs = (("own", "none"), ("own", "shuffled"), ("none", "shuffled"))
    for one, other in pairs:
        for ours, theirs in zip(images[one], images[other], strict=True):
            assert np.abs(ours - theirs).max() > 2, (one, other)
    assert len(words["own"]) == 3
    assert words["shuffled"] == [*words["own"][1:], words["own"][0]]


def test_shuffled_completions_are_those_of_the_next_prompt() -> None:
    words = ["a0", "a1", "b0", "b1", "c0"]
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1], PROMPTS[2]]
    assert of_other_prompts(words, prompts) == ["b0", "b1", "c0", "c0", "a0"]
    with pytest.raises(ConfigError, match=r"evaluation\.completions: shuffled"):
        of_other_prompts(words[:2], prompts[:2])


def test_evaluation_draws_by_its_own_keys() -> None:
    """The completion of an evaluation image is drawn by a key of its own: noise and words are not
    the same random numbers."""
    policy = make()
    read = policy.tools.read(PROMPTS[:1])
    written = policy.tools.write(read, [key("completion", 5)]).own()
    expected = policy.tools.painter.paint(read, written, [5], Sampling(2))
    made = policy.generate(policy.module, PROMPTS[:1], [5])
    assert np.array_equal(made.images, expected)
    assert made.completions == [policy.tools.chat.text(written[0])]


@pytest.mark.parametrize(("kind", "how"), [("text", {}), ("edit", {}), ("edit", ADAPTER)])
def test_guidance_leads_away_from_what_the_untrained_encoder_sees(kind: Kind, how: dict) -> None:
    """However far it was trained since, or even before the first image."""
    policy = make(kind, policy=how, guidance_scale=3.0)
    source = policy.tools.read(PROMPTS)[0].source
    untrained = make(kind, policy=how, guidance_scale=3.0).tools.painter._negative.of(source)
    with torch.no_grad():
        for parameter in trained(policy.module).values():
            parameter += 0.1
    found = policy.tools.painter._negative.of(source)
    torch.testing.assert_close(found.embeds, untrained.embeds, atol=1e-6, rtol=0)


def test_the_copy_for_negative_prompts_is_held_in_what_it_computes_in() -> None:
    """And the trained weights, and the vision tower that both share, in float32 as ever."""
    policy = make("edit", policy={"dtype": "bfloat16"}, guidance_scale=3.0)
    assert {one.dtype for one in policy.module.parameters()} == {torch.float32}
    source = policy.tools.read(PROMPTS)[0].source
    found = policy.tools.painter._negative.of(source).embeds.float()
    usual = make("edit", guidance_scale=3.0).tools.painter._negative.of(source).embeds
    torch.testing.assert_close(found, usual, atol=0.05, rtol=0.05)
    assert not torch.equal(found, usual)


def test_the_transformer_stays_what_it_was() -> None:
    policy = make()
    rollout = rolled_out(policy)
    (part,) = policy.parts(rollout)
    policy.replay(policy.module, rollout, part, with_reference=False).log_prob.sum().backward()
    policy.tools.environment.require_unchanged()
    assert not any(one.requires_grad for one in policy.tools.environment._transformer.parameters())


# Where it is painted ----------------------------------------------------------------------------


def apart(processes: int, gpus: int) -> RunConfig:
    rollout = {"environment": {"gpus": gpus}}
    return RunConfig.model_validate({"rollout": rollout, "launch": {"processes": processes}})


def test_ranks_paint_in_turn_on_the_gpus_behind_theirs(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    gpu = torch.device("cuda", 1)
    for gpus, places in ((0, [1] * 4), (1, [4] * 4), (2, [4, 5, 4, 5])):
        found = [painting_device(apart(4, gpus), gpu, rank).index for rank in range(4)]
        assert found == places
    with pytest.raises(
        ConfigError, match=r"environment\.gpus: rank 2 paints on .* 6, .* 6 are vis"
    ):
        painting_device(apart(4, 4), gpu, 2)
    assert painting_device(apart(4, 2), torch.device("cpu"), 0) == torch.device("cpu")


@pytest.mark.parametrize("kind", ["text", "edit"])
def test_what_is_painted_elsewhere_is_the_same(kind: Kind, monkeypatch) -> None:
    """What encodes, with what is trained, stays where it is; the frozen parts go."""
    asked = []

    def elsewhere(config: RunConfig, device: torch.device, rank: int) -> torch.device:
        asked.append((device, rank))
        return torch.device("cpu", 0)

    here = make(kind, policy=ADAPTER, guidance_scale=3.0)
    monkeypatch.setattr("atelier.policies.qwen.policy.painting_device", elsewhere)
    there = make(kind, policy=ADAPTER, guidance_scale=3.0)
    assert asked == [(torch.device("cpu"), 0)]
    assert there.tools.environment._device == torch.device("cpu", 0)
    found, expected = rolled_out(there), rolled_out(here)
    assert torch.equal(found.old_log_probs, expected.old_log_probs)
    assert np.array_equal(found.images, expected.images)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("kind", ["text", "edit"])
def test_another_gpu_paints_what_the_ranks_own_does(kind: Kind) -> None:
    images = {}
    for gpus in (0, 1):
        environment = {"condition_side": 64, "reference_side": 64, "gpus": gpus}
        policy = make(kind, device="cuda:0", guidance_scale=3.0, environment=environment)
        assert {one.device.index for one in policy.module.parameters()} == {0}
        parts = (policy.tools.environment._transformer, policy.tools.environment._pipeline.vae)
        assert {one.device.index for part in parts for one in part.parameters()} == {gpus}
        images[gpus] = rolled_out(policy).images
        images[gpus, "held out"] = policy.generate(policy.module, PROMPTS, [1, 2, 3]).images
    assert np.array_equal(images[0], images[1])
    assert np.array_equal(images[0, "held out"], images[1, "held out"])


# What is refused --------------------------------------------------------------------------------


def test_prompts_that_are_known_are_refused_before_anything_is_computed() -> None:
    make(texts=["a red circle"])
    with pytest.raises(ConfigError, match=r"rollout\.completion\.max_tokens: 12, and beside"):
        make(texts=["red " * 300])
    with pytest.raises(DataError, match=r"<\|im_end\|>"):
        make(texts=["a circle<|im_end|>"])
    with pytest.raises(DataError, match=r"<\|image_pad\|>"):
        make("edit", texts=["<|image_pad|>"])


def test_a_tokenizer_of_more_tokens_than_the_model_knows_is_refused() -> None:
    own = build_pipeline()
    known = own.text_encoder.get_input_embeddings().num_embeddings
    own.tokenizer.add_tokens([f"new{number}" for number in range(known)])
    encoder, own.text_encoder = own.text_encoder, None
    config = RunConfig.model_validate({"policy": {"family": "qwen"}, "algorithm": {"kl": "k3"}})
    with pytest.raises(ConfigError, match=rf"has a token \d+, its language model {known} of them"):
        QwenPolicy(encoder, own, config, torch.device("cpu"))


def test_a_pipeline_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.kind: edit, .* text to image; use draw"):
        make("text", kind="edit")


def test_an_edit_needs_its_source() -> None:
    policy = make("edit")
    with pytest.raises(DataError, match=r"prompt 9 .* has no source image"):
        rolled_out(policy, [Prompt(9, 0, "make it red", {})])


def test_a_resumed_adapter_has_the_stored_weights_or_is_refused() -> None:
    """The published resume loads nothing, since peft's files have other names."""
    policy = make(policy={"trainable": "lora"})
    fresh = copies(policy.trainable())
    stored = {name: value + 1 for name, value in fresh.items()}
    as_peft_names_them = {name.replace(".default", ""): value for name, value in stored.items()}
    assert set(as_peft_names_them).isdisjoint(stored)
    with pytest.raises(CheckpointError, match="only on one side"):
        put_weights(policy.trainable(), as_peft_names_them)
    put_weights(policy.trainable(), stored)
    found = copies(policy.trainable())
    assert all(torch.equal(found[name], value) for name, value in stored.items())
    assert not any(torch.equal(found[name], value) for name, value in fresh.items())
