"""The batch planner's arithmetic, its rejections and its estimate of memory."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from atelier.config.memory import estimate, read_model_facts
from atelier.config.plan import Plan, plan
from atelier.config.recipes import recipe_names, recipes_directory
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import PlanError

HUB = "policy.path=organisation/model"


def configured(*overrides: str) -> RunConfig:
    """The demo's recipe, without the repository's params.yaml, which is the user's."""
    return resolve("tiny/flow-grpo-fast", overrides, Path(os.devnull))


def planned(*overrides: str, world_size: int | None = None) -> Plan:
    return plan(configured(HUB, *overrides), world_size)


def refusal(*overrides: str, world_size: int | None = None) -> str:
    with pytest.raises(PlanError) as caught:
        planned(*overrides, world_size=world_size)
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A pipeline directory with the shapes of a very small SD3, 8x8 latents of 4 channels."""
    root = tmp_path / "model"
    for folder in ("transformer", "vae", "text_encoder", "tokenizer"):
        (root / folder).mkdir(parents=True)
    (root / "model_index.json").write_text("{}")
    shape = {"sample_size": 8, "patch_size": 2, "num_attention_heads": 2, "num_layers": 3}
    shape |= {"attention_head_dim": 5, "in_channels": 4}
    (root / "transformer" / "config.json").write_text(json.dumps(shape))
    (root / "tokenizer" / "tokenizer_config.json").write_text('{"model_max_length": 16}')
    tensors = {
        "transformer_blocks.0.attn.to_q.weight": np.zeros((10, 10), np.float32),
        "transformer_blocks.0.attn.to_q.bias": np.zeros(10, np.float32),
        "proj_out.weight": np.zeros((4, 10), np.float32),
    }
    save_file(tensors, root / "transformer" / "diffusion_pytorch_model.safetensors")
    save_file({"w": np.zeros(7, np.float16)}, root / "vae" / "model.safetensors")
    save_file({"w": np.zeros(5, np.float32)}, root / "text_encoder" / "model.safetensors")
    return root


@pytest.mark.parametrize("name", recipe_names(recipes_directory()))
def test_every_recipe_is_a_plan_that_works(name: str) -> None:
    assert plan(resolve(name, (), Path(os.devnull))).updates > 0


def test_every_number_of_the_demo() -> None:
    found = planned(
        "train.steps=60",
        "train.prompts_per_step=12",
        "rollout.group_size=16",
        "rollout.micro_batch_size=16",
        "train.updates_per_step=2",
        "launch.processes=1",
        "train.evaluate_every=20",
        "evaluation.prompts=256",
        "evaluation.periodic_prompts=64",
    )
    assert found.images_per_step == 12 * 16
    assert found.micro_batches == 12
    assert found.accumulation == 6
    assert found.updates == 120
    assert found.images == found.reward_calls == 60 * 192
    assert found.evaluations == 3
    assert found.evaluation_images == 2 * 256 + 3 * 64
    assert found.rollout_passes == 60 * 192 * 8
    assert found.replay_passes == 60 * 192 * 2


def test_guidance_reference_and_rewards_cost_what_they_cost() -> None:
    plain = planned()
    assert planned("rollout.guidance_scale=3").rollout_passes == 2 * plain.rollout_passes
    assert planned("algorithm.beta=0.1").replay_passes == 2 * plain.replay_passes
    both = planned("rewards.jpeg_compressibility={weight: 0}")
    assert both.reward_calls == 2 * plain.reward_calls  # weight 0 is still asked for and logged


def test_the_full_window_leaves_the_last_step_out() -> None:
    assert planned("rollout.window.strategy=all", "rollout.num_inference_steps=10").window == 9


def test_two_processes_share_the_micro_batches() -> None:
    one, two = planned(world_size=1), planned(world_size=2)
    assert (two.images, two.micro_batch_size) == (one.images, one.micro_batch_size)
    assert two.accumulation * 2 == one.accumulation


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["rollout.group_size=1"], "rollout.group_size: 1 image has no group"),
        (["rollout.micro_batch_size=10"], "rollout.micro_batch_size: 10 does not divide the 192"),
        (["rollout.micro_batch_size=400"], "rollout.micro_batch_size: 400 is more than the 192"),
        (["train.updates_per_step=5"], "train.updates_per_step: 12 micro-batches a step cannot"),
        (["launch.processes=5"], "launch.processes"),
        (["rollout.noise_level=0"], "rollout.noise_level: 0 leaves nothing stochastic"),
        (["rollout.num_inference_steps=1"], "rollout.num_inference_steps: 1 step is the last"),
        (["rollout.window.size=5"], "rollout.window.size: 5 does not fit"),
        (["rollout.window.range=[2,8]"], "rollout.window.range: [2, 8) reaches past the 7 steps"),
        (["rollout.window.range=[3,3]"], "rollout.window.range: [3, 3) is empty"),
        (["algorithm.kl=k3", "algorithm.beta=0.1"], "algorithm.kl: k3 is for token policies"),
        (["rewards.ocr=null"], "rewards: none is set"),
        (["rewards.ocr.weight=0"], "rewards: all weights are 0"),
        (["data.scene_kind=shapes"], "rewards.ocr: needs a text to look for"),
        (["train.prompts_per_step=4096"], "train.prompts_per_step: 4096 is more than data.train"),
        (["data.heldout_prompts=100"], "evaluation.prompts: 256 is more than data.heldout_prompts"),
        (["data.source=ocr_text", "data.path=no/such.txt"], "data.path: there is no file no/such"),
        (["rollout.log_prob=ratio_norm"], "rollout.log_prob: ratio_norm assumes a Gaussian"),
        (["rollout.window.scope=group", "rollout.window.strategy=all"], "nothing is drawn"),
        (["rollout.window.scope=rank", "rollout.tail=0.5"], "rollout.tail: the images of a"),
        (["rollout.window.strategy=all", "rollout.tail=0.5"], "rollout.tail: rollout.window"),
        (["rollout.window={strategy: decay, size: 9}"], "rollout.window.size: 9 does not fit"),
        (
            ["algorithm.kl_placement=reward", "algorithm.advantage_from=gdpo"],
            "algorithm.kl_placement: the KL is taken off the sum",
        ),
        (["algorithm.keep_extremes=16"], "algorithm.keep_extremes: 16 keeps every image"),
        (["train.resample_rounds=1", "rollout.micro_batch_size=32"], "has to be of one group"),
        (["train.resample_rounds=1", "train.one_step_off=true"], "train.resample_rounds: other"),
        (
            ["train.one_step_off=true", "rollout.old_log_prob=recompute"],
            "rollout.old_log_prob: recomputed by weights that have moved on",
        ),
        (["rollout.log_prob=gaussian_mean"], "use cps_raw, or flow_sde"),
        (["data.source=ocr_text", "data.path=no/such"], "no/such, and no folder with train.txt"),
        (["data.source=ocr_text", "data.path=docs"], "data.path: there is no file docs/train.txt"),
        (["data.source=geneval", "data.path=docs"], "there is no file docs/train_metadata.jsonl"),
    ],
)
def test_an_impossible_plan_names_its_field(overrides: list[str], field: str) -> None:
    assert field in refusal(*overrides)


def test_every_rejection_is_listed() -> None:
    text = refusal("rollout.group_size=1", "rewards.ocr=null", "rollout.noise_level=0")
    assert all(key in text for key in ("rollout.group_size", "rewards:", "rollout.noise_level"))


def test_the_world_size_of_the_trainer_counts() -> None:
    planned("launch.processes=5", world_size=2)
    assert "5 process(es)" in refusal(world_size=5)


def test_small_micro_batches_are_a_warning_not_an_error() -> None:
    warnings = planned("rollout.micro_batch_size=4").warnings
    assert any(text.startswith("rollout.micro_batch_size") for text in warnings)


def test_memory_is_read_from_the_files_of_the_model(model: Path) -> None:
    config = configured(f"policy.path={model}", "policy.lora.rank=3")

    facts = read_model_facts(config)

    assert facts is not None
    assert facts.parameters == 100 + 10 + 40
    assert facts.adapter_parameters == 3 * (10 + 10)
    assert facts.frozen_bytes == 7 * 2 + 5 * 4
    assert facts.latent_values == 4 * 8 * 8
    assert facts.tokens == 16 + 16 + config.policy.max_sequence_length
    assert (facts.width, facts.layers) == (10, 3)


def test_memory_formula(model: Path) -> None:
    full = configured(f"policy.path={model}")
    facts = read_model_facts(full)
    assert facts is not None
    memory = estimate(full, facts, images=10, window=2, ranks=1)
    assert memory.weights == memory.gradients == memory.ema == 4 * 150
    assert memory.optimizer == 8 * 150
    assert memory.trajectories == 4 * 10 * 3 * 256
    assert memory.total == sum(vars(memory).values())

    sharded = configured(f"policy.path={model}", "launch.engine=deepspeed")
    assert estimate(sharded, facts, 10, 2, ranks=2).optimizer == 4 * 150
    assert plan(full).memory is not None


def test_an_adapter_trains_little_and_needs_no_reference_copy(model: Path) -> None:
    settings = [f"policy.path={model}", "algorithm.beta=0.1"]
    full, lora = (configured(*settings, *more) for more in ([], ["policy.trainable=lora"]))
    facts = read_model_facts(lora)
    assert facts is not None
    assert estimate(full, facts, 10, 2, 1).weights == 4 * 2 * 150
    assert estimate(lora, facts, 10, 2, 1).weights == 4 * (150 + facts.adapter_parameters)
    assert estimate(lora, facts, 10, 2, 1).optimizer == 8 * facts.adapter_parameters


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model_index.json", None),
        ("transformer/config.json", "{}"),
        ("transformer/config.json", "{broken"),
        ("transformer/diffusion_pytorch_model.safetensors", "no header"),
    ],
)
def test_a_broken_model_directory_is_a_rejection(model: Path, file: str, text: str | None) -> None:
    if text is None:
        (model / file).unlink()
    else:
        (model / file).write_text(text)
    with pytest.raises(PlanError, match=r"policy\.path: .*" + Path(file).name.replace(".", r"\.")):
        plan(configured(f"policy.path={model}"))


def test_a_run_that_does_not_fit_on_the_disk_is_warned_of(monkeypatch):
    def warned(free: int, *overrides: str) -> list[str]:
        monkeypatch.setattr("atelier.config.space.free_bytes", lambda folder: free)
        return [text for text in plan(configured(*overrides)).warnings if "are free" in text]

    facts = read_model_facts(configured())
    assert facts is not None
    checkpoint, export = 16 * facts.parameters, 4 * facts.parameters + facts.frozen_bytes
    keeps_three = ("train.keep_checkpoints=3", "export.formats=[merged]")
    needed = 4 * checkpoint + export
    assert warned(needed, *keeps_three) == []
    (text,) = warned(needed - 1, *keeps_three)
    assert text.startswith("train.keep_checkpoints: 4 checkpoints of ")
    assert warned(needed - 1, *keeps_three, "train.ema.enabled=false") == []
