"""A policy with a fast transformer samples, learns and resumes as one with the stock one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene, SceneObject, to_dict
from atelier.export.sd3.reference import in_float32
from atelier.policies import embedding_cache
from atelier.policies.base import Sample
from atelier.policies.deepgen.policy import DeepGenPolicy
from atelier.policies.sd3 import transformer_policy
from atelier.policies.sd3.policy import SD3Policy
from atelier.policies.sd3.transformer_policy import TransformerPolicy
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import check_reload, latest_checkpoint, load_checkpoint
from atelier.training.weights import put_weights
from atelier.training.worker import train
from tests.support.random_transformers import build
from tests.support.runs import make_run, metrics, random_deepgen_model, untrained_pipeline

LORA = {"trainable": "lora", "lora": {"rank": 4, "alpha": 8}}
SOURCE = {"source_scene": to_dict(Scene((SceneObject("circle", "red", (1, 1)),)))}
PROMPTS = [Prompt(0, 0, 'the word "KEM" in red', SOURCE), Prompt(1, 0, "a blue circle", SOURCE)]
SAMPLES = [Sample(i, i // 2, PROMPTS[i // 2]) for i in range(4)]
REFERENCES = {"kind": "edit", "guidance_scale": 2.0}

SETTINGS = {
    "sd3": ("sd3", {}, {}),
    "sd3-guided": ("sd3", LORA, {"guidance_scale": 3.0}),
    "sd3-recomputed": ("sd3", {**LORA, "gradient_checkpointing": True}, {"guidance_scale": 3.0}),
    "deepgen-references": ("deepgen", {"trainable": "dit"}, REFERENCES),
    "deepgen-recomputed": ("deepgen", {**LORA, "gradient_checkpointing": True}, REFERENCES),
}


@pytest.fixture(scope="module", autouse=True)
def _embeddings_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding_cache, "CACHE", str(tmp_path_factory.mktemp("embeddings")))
        yield


def policy_of(setting: str, transformer: str) -> TransformerPolicy:
    family, policy, rollout = SETTINGS[setting]
    kind, path = {
        "sd3": (SD3Policy, untrained_pipeline()),
        "deepgen": (DeepGenPolicy, random_deepgen_model()),
    }[family]
    told = {"family": family, "path": str(path), "transformer": transformer, **policy}
    sections = {
        "policy": {**told, "max_sequence_length": 16, "text": {"disk_gigabytes": 0.1}},
        "rollout": {"num_inference_steps": 4, "noise_level": 0.8, **rollout},
        "algorithm": {"beta": 0.01},
    }
    made = kind.load(RunConfig.model_validate(sections), "cpu")
    made.prepare_reference()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # away from the reference, and an adapter from zero
        for one in made.trainable().values():
            one.add_(torch.randn(one.shape, generator=generator), alpha=0.1)
    made.begin_step(1)
    return made


def learned(policy: TransformerPolicy):
    """A rollout, its replays, and the gradients of its log-probs."""
    rollout = policy.rollout(policy.module, SAMPLES)
    replays = [policy.replay(policy.module, rollout, one, True) for one in policy.parts(rollout)]
    torch.cat([one.log_prob for one in replays], dim=1).sum().backward()
    return rollout, replays, {name: one.grad for name, one in policy.trainable().items()}


def require_equal(found: Tensor, expected: Tensor, what: str) -> None:
    assert (found - expected).norm() <= 1e-5 * expected.norm(), what


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_samples_and_learns_as_stock_does(setting: str) -> None:
    torch.set_num_threads(1)
    stock, fast = (learned(policy_of(setting, one)) for one in ("stock", "fast"))
    (rollout, replays, gradients), (theirs, their_replays, their_gradients) = fast, stock
    require_equal(rollout.record["latents"], theirs.record["latents"], "latents")
    require_equal(rollout.old_log_probs, theirs.old_log_probs, "log-probs of the rollout")
    replayed = torch.cat([one.log_prob for one in replays], dim=1).detach()
    assert (replayed - rollout.old_log_probs).exp().sub(1).abs().max() < 1e-6
    for one, other in zip(replays, their_replays, strict=True):
        require_equal(one.log_prob, other.log_prob, "log-probs of the replay")
        for name in ("velocity", "reference_velocity"):
            require_equal(one.statistics[name], other.statistics[name], name)
        moved = (one.statistics["velocity"] - one.statistics["reference_velocity"]).norm()
        assert moved > 1e-3 * one.statistics["velocity"].norm()
    assert gradients.keys() == their_gradients.keys()
    largest = max(one.norm() for one in their_gradients.values() if one is not None)
    for name, value in their_gradients.items():
        assert (gradients[name] is None) == (value is None), name
        if value is not None:
            differ = (gradients[name] - value).norm()
            assert differ <= 1e-4 * max(value.norm(), 1e-2 * largest), name


@pytest.mark.parametrize(
    ("device", "compile_", "compiled"),
    [("cuda", None, True), ("cpu", None, False), ("cuda", False, False), ("cpu", True, True)],
)
@pytest.mark.parametrize("family", ["sd3", "deepgen"])
def test_gpus_compile_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, family, device: str, compile_: bool | None, compiled: bool
) -> None:
    told = []
    monkeypatch.setattr(transformer_policy, "make_fast", lambda _, *a, **k: told.append((a, k)))
    settings = {"family": family, "compile": compile_}
    for one in ("stock", "fast"):
        policy = PolicyConfig(**settings, transformer=one)
        transformer_policy.prepared(build("sd3"), policy, 0, torch.device(device))
    assert told == [((compiled, family == "deepgen", False), {})]


def test_adapters_are_folded_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(transformer_policy, "make_fast", lambda _, *a: told.append(a))
    for one in (True, False):
        policy = PolicyConfig(transformer="fast", trainable="lora", lora={"folded": one})
        transformer_policy.prepared(build("sd3"), policy, 0, torch.device("cpu"))
    assert told == [(False, False, True), (False, False, False)]


# Runs ---------------------------------------------------------------------------------------------

RUN = (
    "rewards.jpeg_compressibility.weight=0",
    "rewards.custom.grey={function: 'tests.support.grey:greyness', weight: 1.0}",
    "policy.trainable=lora",
    "policy.lora.rank=4",
    "algorithm.beta=0.01",
    "rollout.guidance_scale=2",
    "train.ema.enabled=true",
    "train.learning_rate=1e-3",
    "train.adam_epsilon=1e-3",  # an update is proportional to the gradient
    "train.checkpoint_every=3",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    found = {}
    for one in ("stock", "fast"):
        run = make_run(tmp_path_factory.mktemp(one), (*RUN, f"policy.transformer={one}"))
        train(run.config("train"), run)
        found[one] = run
    return found


def test_three_steps_have_the_same_curve(runs) -> None:
    stock, fast = (metrics(runs[one]) for one in ("stock", "fast"))
    assert len(stock) == 3
    assert stock[0]["grad_norm"] > 0
    for theirs, ours in zip(stock, fast, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5), theirs["step"]


@pytest.mark.parametrize(("written", "read"), [("stock", "fast"), ("fast", "stock")])
def test_a_checkpoint_of_one_is_one_of_the_other(runs, written: str, read: str) -> None:
    saved = latest_checkpoint(runs[written].checkpoints)
    assert saved is not None
    weights = load_checkpoint(saved).weights
    velocities = []
    for one in (written, read):
        config = load_stage_config(runs[one].config("train"))
        policy = SD3Policy.load(config, "cpu")
        put_weights(policy.trainable(), weights)
        check_reload(saved, policy.fresh_module(), weights)
        x = policy.noise([1, 2])[:, 0]
        conditions = policy.encode_texts([one.text for one in PROMPTS])
        with torch.no_grad():
            told = (torch.tensor([500.0]), conditions, 2.0)
            velocities.append(policy.velocity(policy.module, x, *told))
    require_equal(velocities[1], velocities[0], "velocity")


def test_an_export_is_compared_with_what_diffusers_computes(runs) -> None:
    config = load_stage_config(runs["fast"].config("train"))
    assert config.policy.transformer == "fast"
    assert in_float32(config.policy).transformer == "stock"
