"""DeepGen as a policy beyond what every policy must hold (test_policy_contract.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene, SceneObject, to_dict
from atelier.errors import ConfigError, DataError
from atelier.policies import embedding_cache
from atelier.policies.base import Sample
from atelier.policies.deepgen.policy import DeepGenPolicy
from atelier.policies.flow.schedules import Schedules
from tests.support import random_deepgen
from tests.support.runs import random_deepgen_model

TEXTS = ("a red circle", 'the word "KEM" in red above two blue circles', "a cross", "two squares")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def prompt(number: int, text: str, colour: str = "red") -> Prompt:
    scene = Scene((SceneObject("circle", colour, (1, 1)),))
    return Prompt(number, 0, text, {"source_scene": to_dict(scene)})


PROMPTS = [prompt(number, text) for number, text in enumerate(TEXTS)]


def config(policy=None, **sections) -> RunConfig:
    own = {"family": "deepgen", "path": str(random_deepgen_model()), **(policy or {})}
    rollout = {"num_inference_steps": 4, "noise_level": 0.8, **sections.pop("rollout", {})}
    evaluation = {"num_inference_steps": 3, **sections.pop("evaluation", {})}
    return RunConfig.model_validate(
        {"policy": own, "rollout": rollout, "evaluation": evaluation, **sections}
    )


def load(policy=None, **sections) -> DeepGenPolicy:
    return DeepGenPolicy.load(config(policy, **sections), "cpu")


def samples() -> list[Sample]:
    return [Sample(index, index // 2, PROMPTS[index // 2]) for index in range(8)]


# What is trained ----------------------------------------------------------------------------------


def names(policy: DeepGenPolicy) -> set[str]:
    return {name.split(".")[0] for name in policy.trainable()}


def test_by_default_the_transformer_alone_is_trained() -> None:
    policy = load()
    assert config().policy.trainable == "dit"
    assert names(policy) == {"transformer"}
    transformer = random_deepgen.build().transformer
    assert len(policy.trainable()) == len(list(transformer.parameters()))
    policy.prepare_reference()
    copied = dict(policy._reference.named_parameters())
    assert copied.keys() == policy.trainable().keys(), "and of it alone there is a copy"


def test_with_the_connector_the_queries_stay() -> None:
    """They are read by the language model, which nothing goes back through."""
    policy = load({"trainable": "dit_connector"})
    trained = policy.trainable()
    assert names(policy) == {"transformer", "bridge"}
    assert "bridge.meta_queries" not in trained
    assert "bridge.projector_1.weight" in trained
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    replay = policy.replay(policy.module, rollout, next(iter(policy.parts(rollout))), False)
    replay.log_prob.sum().backward()
    for name, parameter in trained.items():
        if name.startswith("bridge."):
            assert parameter.grad is not None, name
            assert parameter.grad.any() or name.endswith("k_proj.bias"), name


def test_the_trained_connector_draws_what_the_frozen_one_does() -> None:
    images = [
        one.generate(one.module, PROMPTS, [1, 2, 3, 4]).images
        for one in (load(), load({"trainable": "dit_connector"}))
    ]
    assert np.abs(images[0].astype(int) - images[1]).max() <= 1


# Batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["dit", "dit_connector"])
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_batch_equals_singles(part: str, guidance: float) -> None:
    """Velocities in float32, of prompts of four lengths."""
    policy = load({"trainable": part})
    x = policy.noise([1, 2, 3, 4])[:, 0]
    at = torch.tensor([500.0])
    with torch.no_grad():
        together = policy.velocity(policy.module, x, at, policy.encode(PROMPTS, guidance), guidance)
        for row, one in enumerate(PROMPTS):
            own = policy.encode([one], 1.0)
            assert own.mask is None
            alone = policy.velocity(policy.module, x[row : row + 1], at, own, guidance)
            torch.testing.assert_close(together[row], alone[0], atol=2e-5, rtol=2e-5)


def test_the_published_form_depends_on_who_else_is_there() -> None:
    policy = load({"connector": {"padding": "maskless"}}, rollout={"guidance_scale": 2.0})
    x = policy.noise([1, 2])[:, 0]
    at = torch.tensor([500.0])
    with torch.no_grad():
        mates = policy.velocity(policy.module, x, at, policy.encode(PROMPTS[:2], 1.0), 1.0)
        alone = policy.velocity(policy.module, x[:1], at, policy.encode(PROMPTS[:1], 1.0), 1.0)
    assert (mates[:1] - alone).abs().max() > 1e-2
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, samples())
    for part in policy.parts(rollout):
        replay = policy.replay(policy.module, rollout, part, False)
        old = rollout.old_log_probs[:, part.actions]
        assert (replay.log_prob - old).abs().max() < 1e-6, "a micro-batch stays one"
    both = policy.guided(policy.encode(PROMPTS[:2], 2.0))
    assert both.mask is None
    assert both.words == ("", "", *TEXTS[:2])


# Edits --------------------------------------------------------------------------------------------


def test_edits_see_their_source_twice() -> None:
    """As the language model does, and as latents beside the noisy one."""
    policy = load(rollout={"kind": "edit"})
    red, blue = prompt(0, "make it green"), prompt(1, "make it green", "blue")
    conditions = policy.encode([red, blue], 1.0)
    assert conditions.words == ("make it green",) * 2
    assert not torch.allclose(conditions.tokens[0], conditions.tokens[1], atol=1e-3)
    assert [len(one) for one in conditions.references] == [1, 1]
    assert conditions.references[0][0].shape == (4, 16, 16)
    images = policy.generate(policy.module, [red, blue], [5, 5]).images
    assert np.abs(images[0].astype(int) - images[1]).max() > 3
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, [Sample(0, 0, red), Sample(1, 0, red)])
    assert [one.size for one in rollout.sources] == [(64, 64)] * 2


def test_guided_edits_lead_away_from_no_words_about_the_same_image() -> None:
    policy = load(rollout={"kind": "edit", "guidance_scale": 2.0})
    both = policy.guided(policy.encode(PROMPTS[:2], 2.0))
    assert both.words == ("", "", *TEXTS[:2])
    assert len(both.references) == 4
    assert all(torch.equal(both.references[row][0], both.references[row + 2][0]) for row in (0, 1))


def test_an_edit_is_read_once_for_all_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what guidance leads away from only where there is guidance."""
    policy = load(rollout={"kind": "edit"}, evaluation={"guidance_scale": 3.0})
    read: list[str] = []
    encoded = policy._encoder.encode_edits
    monkeypatch.setattr(
        policy._encoder,
        "encode_edits",
        lambda words, images: [read.extend(words), encoded(words, images)][1],
    )
    red, blue = prompt(0, "make it green"), prompt(1, "make it green", "blue")
    group = policy.encode([red, red, blue, red], 1.0)
    assert read == ["make it green"] * 2
    assert group.against is None
    alone = policy.encode([blue], 1.0)
    assert torch.equal(group.tokens[2], alone.tokens[0])
    assert torch.equal(group.references[2][0], alone.references[0][0])
    assert all(torch.equal(group.tokens[0], group.tokens[row]) for row in (1, 3))
    read.clear()
    guided = policy.encode([red, red], 3.0)
    assert read == ["", "make it green"]
    assert len(guided.against) == 2


def test_an_edit_without_an_image_is_told() -> None:
    policy = load(rollout={"kind": "edit"})
    with pytest.raises(DataError, match="has no source image"):
        policy.encode([Prompt(0, 0, "make it red", {})], 1.0)


# Prompts ------------------------------------------------------------------------------------------


def test_the_language_model_is_freed_when_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_cache, "CACHE", str(tmp_path))
    settings = {"text": {"disk_gigabytes": 0.1}}
    policy = DeepGenPolicy.load(config(settings), "cpu", prompts=TEXTS)
    reader = policy._encoder._reader
    assert not reader.are_loaded
    kept = policy.encode(PROMPTS, 1.0)
    again = DeepGenPolicy.load(config(settings), "cpu", prompts=TEXTS)
    assert torch.equal(again.encode(PROMPTS, 1.0).tokens, kept.tokens)
    assert torch.equal(kept.tokens, load().encode(PROMPTS, 1.0).tokens), "and nothing is lost by it"
    other = DeepGenPolicy.load(config({**settings, "trainable": "dit_connector"}), "cpu")
    assert other.encode(PROMPTS, 1.0).tokens.shape[-1] == 64, "hidden states are kept apart"


def test_marks_of_the_language_model_in_a_prompt_are_refused() -> None:
    with pytest.raises(DataError, match=r"<\|im_end\|>, which is a mark"):
        load().encode([prompt(0, "a red<|im_end|> circle")], 1.0)


def test_an_image_that_the_language_model_cannot_see_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.resolution: 48 pixels; .* multiples of 32"):
        load({"resolution": 48}, rollout={"kind": "edit"})


# Noise levels -------------------------------------------------------------------------------------


def test_a_scheduler_that_shifts_by_size_is_told_the_size() -> None:
    """mu is linear in the tokens; a level s becomes e^mu s / (1 + (e^mu - 1) s)."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_image_seq_len=256,
        max_image_seq_len=4096,
        base_shift=0.5,
        max_shift=1.16,
    )
    made = Schedules(scheduler, config().rollout, torch.device("cpu"), 1024).of_scheduler(4)
    shift = np.exp(0.5 + 0.66 * (1024 - 256) / (4096 - 256))
    plain = np.linspace(1, 1e-3, 4)
    expected = shift * plain / (1 + (shift - 1) * plain)
    assert [step.sigma for step in made.steps] == pytest.approx(list(expected), abs=1e-6)
