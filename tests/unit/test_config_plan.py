"""The batch planner's arithmetic, its rejections and its estimate of memory."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from atelier.config.facts.read import read_model_facts
from atelier.config.facts.sd3 import SD3Facts
from atelier.config.memory.estimate import Memory, estimate
from atelier.config.memory.prompts import EMBEDDINGS_ON_DEVICE, bytes_on_device
from atelier.config.plan import Plan, plan
from atelier.config.recipes import recipe_names, recipes_directory
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.space import checkpoint_bytes
from atelier.config.without_effect import without_effect
from atelier.errors import PlanError

HUB = "policy.path=organisation/model"


LORA = ("policy.path=assets/tiny-sd3", "policy.trainable=lora")


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
    shape |= {"attention_head_dim": 5, "in_channels": 4, "joint_attention_dim": 6}
    shape |= {"pooled_projection_dim": 7, "pos_embed_max_size": 8}
    (root / "transformer" / "config.json").write_text(json.dumps(shape))
    (root / "vae" / "config.json").write_text('{"block_out_channels": [8, 16, 32]}')
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
    assert found.samples_per_step == 12 * 16
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


def test_groups_sampled_again_and_probabilities_recomputed_are_counted() -> None:
    plain = planned()
    again = planned("train.resample_rounds=2")
    assert again.reward_calls == 3 * plain.reward_calls
    assert again.rollout_passes == 3 * plain.rollout_passes
    assert again.images == plain.images
    recomputed = planned("rollout.old_log_prob=recompute")
    assert recomputed.rollout_passes == plain.rollout_passes
    assert recomputed.replay_passes == 2 * plain.replay_passes


def test_the_full_window_leaves_the_last_step_out() -> None:
    assert (
        planned("rollout.window.strategy=all", "rollout.num_inference_steps=10").trained_actions
        == 9
    )


def test_a_fraction_of_the_steps_is_trained() -> None:
    window = "rollout.window={strategy: fraction, fraction: 0.6}"
    made = planned(window, "rollout.num_inference_steps=50")
    assert made.trained_actions == 30
    assert made.replay_passes == made.images * 30
    everything = "rollout.window={strategy: fraction, fraction: 1.0, include_last: true}"
    sde = ("rollout.dynamics=flow_sde", "algorithm.kl=latent_mean")
    assert planned(everything, *sde).trained_actions == 8
    assert not any("include_last" in one for one in planned(everything, *sde).warnings)
    useless = planned("rollout.window.include_last=true", "rollout.window.fraction=0.5").warnings
    assert [one.split(":")[0] for one in useless if "does nothing" in one] == [
        "rollout.window.fraction",
        "rollout.window.include_last",
    ]


def test_two_processes_share_the_micro_batches() -> None:
    one, two = planned(world_size=1), planned(world_size=2)
    assert (two.images, two.micro_batch_size) == (one.images, one.micro_batch_size)
    assert two.accumulation * 2 == one.accumulation


NFT = (
    "algorithm.name=nft",
    "rollout.dynamics=ode",
    "algorithm.clip_range=null",
    "rollout.noise_level=0.4",
)


def test_learning_from_finished_images_counts_levels() -> None:
    """10 steps at 0.99 are 9 levels; their velocities are computed once more while sampling."""
    made = planned(*NFT, "rollout.num_inference_steps=10")
    assert made.trained_actions == 9
    assert made.replay_passes == made.images * 9
    assert made.rollout_passes == made.images * (10 + 9)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        (["rollout.group_size=1"], "rollout.group_size: 1 image has no group"),
        (["rollout.micro_batch_size=10"], "rollout.micro_batch_size: 10 does not divide the 192"),
        (["rollout.micro_batch_size=400"], "rollout.micro_batch_size: 400 is more than the 192"),
        (["train.updates_per_step=5"], "train.updates_per_step: 12 micro-batches a step cannot"),
        (["launch.processes=5"], "launch.processes"),
        (["rollout.noise_level=0"], "rollout.noise_level: 0 leaves nothing stochastic"),
        (["rollout.noise_level=1e-9"], "rollout.noise_level: 1e-09 leaves nothing stochastic"),
        (["train.ema.every=1000"], "train.ema.every: 1000 is more than the 80 updates"),
        (
            ["algorithm.advantage_trim=0.5", "rollout.group_size=2", "train.prompts_per_step=96"],
            "algorithm.advantage_trim: 0.5 leaves 1 of 2 images",
        ),
        (
            ["train.resample_rounds=2", "data.train_prompts=30"],
            "train.resample_rounds: 2 rounds of other prompts may need 36 in a step",
        ),
        (
            ["train.resample_rounds=2", "algorithm.advantage_over=step"],
            "train.resample_rounds: other prompts for groups of equal rewards, which teach",
        ),
        (
            [*LORA, 'policy.lora.target_modules=["attn.to_q","attn.typo"]'],
            "policy.lora.target_modules: attn.typo names no linear layer",
        ),
        (
            [*LORA, "policy.lora.target_modules=[proj]"],
            "policy.lora.target_modules: proj names no linear layer of the transformer, or other",
        ),
        (
            [*LORA, "policy.lora.target_modules=[q_proj]"],
            "policy.lora.target_modules: q_proj names no linear layer",
        ),
        (
            [*LORA, "policy.lora.target_modules=[]"],
            "policy.lora.target_modules: the empty list names no linear layer",
        ),
        (["rollout.num_inference_steps=1"], "rollout.num_inference_steps: 1 step is the last"),
        (["rollout.window.size=5"], "rollout.window.size: 5 does not fit"),
        (["rollout.window.range=[2,8]"], "rollout.window.range: [2, 8) reaches past the 7 steps"),
        (["rollout.window.range=[3,3]"], "rollout.window.range: [3, 3) is empty"),
        (["algorithm.kl=k3", "algorithm.beta=0.1"], "algorithm.kl: k3 is for token policies"),
        (["rewards.ocr=null"], "rewards: none is set"),
        (["rewards.ocr.weight=0"], "rewards: all weights are 0"),
        (["data.scene_kind=shapes"], "rewards.ocr: needs a text to look for"),
        (["train.prompts_per_step=4096"], "train.prompts_per_step: 4096 is more than data.train"),
        (["data.source=ocr_text", "data.path=no/such.txt"], "data.path: there is no file no/such"),
        (["rollout.log_prob=ratio_norm"], "rollout.log_prob: ratio_norm assumes a Gaussian"),
        (["rollout.window.scope=group", "rollout.window.strategy=all"], "nothing is drawn"),
        (["rollout.window.scope=rank", "rollout.tail=0.5"], "rollout.tail: the images of a"),
        (["rollout.window.strategy=all", "rollout.tail=0.5"], "rollout.tail: rollout.window"),
        (
            ["rollout.window={strategy: fraction, fraction: 1.0}"],
            "rollout.window.fraction: 1 of 8 steps (rollout.num_inference_steps) is 8, and 7 can "
            "be stochastic, which the last is not; lower it, or set rollout.window.include_last",
        ),
        (
            ["rollout.window={strategy: all, include_last: true}"],
            "rollout.window.include_last: the last step of rollout.dynamics cps has no noise",
        ),
        (
            ["rollout.window={strategy: fraction, scope: group}"],
            "rollout.window.scope: group: with rollout.window.strategy fraction all images",
        ),
        (
            ["rollout.window.strategy=fraction", "rollout.tail=0.5"],
            "rollout.tail: rollout.window.strategy fraction leaves no steps",
        ),
        (
            ["train.schedule={kind: constant_with_warmup, warm_up_updates: 80}"],
            "train.schedule.warm_up_updates: 80 is not before the last of the run's 80 updates",
        ),
        (["rollout.window={strategy: decay, size: 9}"], "rollout.window.size: 9 does not fit"),
        (
            ["algorithm.kl_placement=reward", "algorithm.advantage_from=gdpo"],
            "algorithm.kl_placement: the KL is taken off the sum",
        ),
        (["algorithm.name=nft"], "rollout.dynamics: cps: algorithm.name nft learns from images"),
        (["rollout.dynamics=ode"], "rollout.dynamics: ode has no probabilities"),
        (["rollout.solver=dpm_solver"], "rollout.solver: dpm_solver takes the steps of"),
        (["algorithm.nft.strength=0.5"], "algorithm.nft: is for algorithm.name nft"),
        (["rollout.level_share=0.5"], "rollout.level_share: is for finished images"),
        ([*NFT, "rollout.noise_level=0.8"], "rollout.noise_level: is for stochastic steps"),
        ([*NFT, "rollout.window.size=1"], "rollout.window: is for stochastic steps"),
        ([*NFT, "rollout.num_inference_steps=1"], "rollout.num_inference_steps: 1 step is the"),
        (
            [
                *("train.resample_rounds=1", "launch.processes=2"),
                *("launch.engine=deepspeed", "launch.zero_stage=3"),
            ],
            "train.resample_rounds: sampling needs all ranks",
        ),
        ([*NFT, "rollout.tail=0.5"], "rollout.tail: is for stochastic steps"),
        ([*NFT, "rollout.log_prob=cps_raw"], "rollout.log_prob: is for stochastic steps"),
        ([*NFT, "rollout.old_log_prob=recompute"], "rollout.old_log_prob: algorithm.name nft"),
        ([*NFT, "rollout.shared_start=true"], "rollout.shared_start: without stochastic steps"),
        ([*NFT, "algorithm.clip_range=0.001"], "algorithm.clip_range: algorithm.name nft has no"),
        (
            [*NFT, "algorithm.beta=0.1"],
            "algorithm.kl: latent_mean: algorithm.name nft has velocity",
        ),
        (
            [*NFT, "algorithm.beta=0.1", "algorithm.kl=velocity", "algorithm.kl_placement=reward"],
            "algorithm.kl_placement: algorithm.name nft adds the KL to the loss",
        ),
        ([*NFT, "rollout.group_size=1"], "rollout.group_size: 1 image has no group"),
        (["rollout.lowest_level=0.02"], "rollout.lowest_level: stretches the levels of"),
        (
            ["rollout={schedule: resolution_shift, lowest_level: 0.02, tail: 0.5}"],
            "rollout.tail: has no place among stretched levels",
        ),
        (["train.ema.enabled=false"], "export.weights: ema, but train.ema.enabled is false"),
        (
            ["rollout.window={strategy: progressive, range: [0, 4], stride: 3}"],
            "rollout.window.stride: 3 leads a window of 2 out of",
        ),
        (
            ["rollout.window={strategy: decay, steps_per_window: 2, fewest_steps_per_window: 5}"],
            "rollout.window.fewest_steps_per_window: 5 at the end is more than the 2",
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


def test_one_micro_batch_is_one() -> None:
    whole = ("train.prompts_per_step=1", "rollout.micro_batch_size=16", "rollout.group_size=16")
    assert ": 1 micro-batch a step cannot be shared" in refusal(*whole, "train.updates_per_step=2")
    more = ("train.prompts_per_step=3", *whole[1:])
    assert ": 3 micro-batches a step cannot" in refusal(*more, "train.updates_per_step=2")


@pytest.mark.parametrize(
    ("recipe", "answer"),
    [("tiny/flow-grpo-fast", "2 or more"), ("janus-pro-1b/pair-grpo", "4 or more")],
)
def test_a_group_of_one_has_one_answer(recipe: str, answer: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(resolve(recipe, ["rollout.group_size=1"], Path(os.devnull)))
    lines = [one for one in str(caught.value).splitlines() if "rollout.group_size: " in one]
    assert len(lines) == 1
    assert lines[0].endswith(f"use {answer}")


def test_every_rejection_is_listed() -> None:
    text = refusal("rollout.group_size=1", "rewards.ocr=null", "rollout.noise_level=0")
    assert all(key in text for key in ("rollout.group_size", "rewards:", "rollout.noise_level"))


def test_every_batch_problem_is_told_with_numbers_that_work() -> None:
    step = ("train.prompts_per_step=7", "rollout.group_size=5")
    said = refusal(*step, "train.updates_per_step=3", "launch.processes=1")
    assert "rollout.micro_batch_size: 16 does not divide the 35 images" in said
    assert "7 or 35 works" in said
    assert "35 images a step cannot be shared equally by 3 update(s)" in said
    assert "what works: train.updates_per_step 1 or 5, or train.prompts_per_step 6 or 9" in said
    planned(*step, "train.updates_per_step=5", "rollout.micro_batch_size=7", "launch.processes=1")
    both = refusal(*step, "train.updates_per_step=3", "launch.processes=2")
    assert "(launch.processes x launch.nodes); what works: train.prompts_per_step 6 or 12" in both
    shared = refusal("train.prompts_per_step=4", "train.updates_per_step=2", "launch.processes=4")
    assert "4 micro-batches a step cannot be shared equally" in shared
    assert "what works: rollout.micro_batch_size 8, or train.updates_per_step 1, or" in shared
    step = ("train.prompts_per_step=6", "train.updates_per_step=1", "rollout.micro_batch_size=16")
    assert refusal(*step, "launch.processes=4").endswith(", or launch.processes 3")
    planned(*step, "launch.processes=3")
    assert "more than the 4 images of a step; 2 works" in refusal(
        "train.prompts_per_step=2", "rollout.group_size=2", "launch.processes=2",
        "train.updates_per_step=1",
    )  # fmt: skip


def test_a_wide_clip_range_of_another_recipe_is_warned_of_with_guard() -> None:
    guard = ("rollout.dynamics=flow_sde", "rollout.log_prob=ratio_norm")
    assert any("algorithm.clip_range: 0.001 clips" in one for one in planned(*guard).warnings)
    for narrow in ("null", "1e-4"):
        warnings = planned(*guard, f"algorithm.clip_range={narrow}").warnings
        assert not any("clip_range" in one for one in warnings)


def test_the_world_size_of_the_trainer_counts() -> None:
    planned("launch.processes=5", world_size=2)
    assert "5 process(es)" in refusal(world_size=5)


@pytest.mark.parametrize(("size", "expected"), [(6, True), (7, False), (24, False)])
def test_groups_smaller_than_any_published_are_warned_of(size: int, expected: bool) -> None:
    warnings = planned(f"rollout.group_size={size}", "rollout.micro_batch_size=1").warnings
    assert any(text.startswith("rollout.group_size") for text in warnings) == expected


def test_more_evaluated_than_held_out_is_a_warning_whatever_the_source() -> None:
    found = planned("data.heldout_prompts=50")
    assert found.evaluation_images == 2 * 50 + found.evaluations * 50
    said = [text for text in found.warnings if "data.heldout_prompts is 50" in text]
    assert [text.split(":")[0] for text in said] == [
        "evaluation.prompts",
        "evaluation.periodic_prompts",
    ]


def test_settings_of_scenes_are_not_warned_of_beside_a_file() -> None:
    file = ("data.source=focusdiff", "data.path=README.md", "evaluation.paircomp.judge=examiner")
    recipe = "janus-pro-7b/pair-grpo"
    assert not any("data." in one for one in plan(resolve(recipe, file, Path(os.devnull))).warnings)


def test_pairs_of_scenes_are_all_that_a_suite_of_pairs_evaluates() -> None:
    """A third of 100 prompts: 17 pairs, 34 prompts of two images each."""
    rewards = "rewards={ocr: null, jpeg_compressibility: {weight: 1}}"
    scenes = ("data.scene_kind=shapes", "data.scene_pairs=0.34", "data.heldout_prompts=100")
    found = planned(rewards, *scenes, "evaluation.suite=paircomp")
    assert found.evaluation_images == 2 * (2 * 34 + found.evaluations * 34)
    said = [text for text in found.warnings if text.startswith("evaluation.prompts")]
    assert said == [
        "evaluation.prompts: 256, but data.heldout_prompts is 100, of which 34 come in pairs "
        "(data.scene_pairs): all of them"
    ]


def test_small_micro_batches_are_a_warning_not_an_error() -> None:
    def said(*overrides: str) -> bool:
        warnings = planned("rollout.micro_batch_size=4", *overrides).warnings
        return any(text.startswith("rollout.micro_batch_size") for text in warnings)

    assert said()
    # No size is steady there, so another one would mend nothing.
    assert not said("policy.dtype=bfloat16")


@pytest.mark.parametrize("recipe", recipe_names(recipes_directory()))
def test_a_recipe_is_warned_of_only_for_what_a_machine_lacks(
    recipe: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With disk, GPU, keys, files to download and prompts of one's own, none is warned of."""
    monkeypatch.setattr("atelier.config.space.free_bytes", lambda _: 10**15)
    monkeypatch.setattr("atelier.config.gpu_seen.gpu_is_seen", lambda: True)
    config = resolve(recipe, (), Path(os.devnull))
    for judge in config.judges.values():
        if judge.token_env is not None:
            monkeypatch.setenv(judge.token_env, "word")
    adapter = tmp_path / "downloaded.safetensors"
    adapter.touch()
    here = [f"rollout.environment.adapter={adapter}"] if config.policy.family == "qwen" else []
    warnings = plan(resolve(recipe, here, Path(os.devnull))).warnings
    brings = any(judge.token_env is not None for judge in config.judges.values())
    named = [one for one in warnings if one.startswith("data.source: scenes: ")]
    assert len(named) == (brings and config.data.source == "scenes")
    assert [one for one in warnings if one not in named] == []


def test_a_gpu_that_this_machine_lacks_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def said(device: str) -> list[str]:
        warnings = planned(f"launch.device={device}").warnings
        return [one for one in warnings if one.startswith("launch.device")]

    monkeypatch.setattr("atelier.config.gpu_seen._DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (warning,) = said("cuda")
    assert "cuda: no GPU is seen on this machine" in warning
    assert said("auto") == said("cpu") == []
    (tmp_path / "nvidiactl").touch()  # the driver's, without a card
    assert said("cuda") == [warning]
    (tmp_path / "nvidia0").touch()
    assert said("cuda") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert said("cuda") == [warning]


@pytest.mark.parametrize(
    ("override", "needs"),
    [
        ("policy.lora.rank=9", "policy.trainable: lora"),
        ("rollout.shift=9", "rollout.schedule: linear_shift"),
        ("rollout.window.stride=1", "a rollout.window.strategy that moves"),
        ("rollout.window.fewest_steps_per_window=3", "rollout.window.strategy: decay"),
        ("algorithm.kl=velocity", "algorithm.beta above 0"),
        ("algorithm.kl_placement=reward", "algorithm.beta above 0"),
        ("train.in_flight=store", "train.one_step_off: true"),
        ("launch.zero_stage=3", "launch.engine: deepspeed"),
        ("policy.compile=true", "policy.transformer: fast"),
        ("policy.lora.folded=true", "policy.transformer: fast and policy.trainable: lora"),
        ("rewards.ocr.spans.case_sensitive=false", "rewards.ocr.rule: spans"),
        ("evaluation.ocr.spans.case_sensitive=false", "evaluation.ocr.rule: spans"),
        ("tracking.wandb.mode=online", "tracking.wandb.enabled: true"),
        ("tracking.swanlab.project=mine", "tracking.swanlab.enabled: true"),
        ("evaluation.unigenbench.ask=each", "evaluation.suite: unigenbench with"),
        ("evaluation.editing.about=facts", "evaluation.suite: editing with"),
    ],
)
def test_a_setting_without_effect_is_a_warning(override: str, needs: str) -> None:
    key = override.split("=")[0]
    (warning,) = [text for text in planned(override).warnings if "does nothing" in text]
    assert warning.startswith(f"{key}: does nothing here: it needs")
    assert needs in warning


def test_orders_are_of_pairs_that_a_judge_sees() -> None:
    judge = "judges.j={model: m, placement: managed}"
    reward = "rewards.unified_reward_think={judge: j, both_orders: false"
    for form, warned in (("verdict", False), ("p_yes", True)):
        config = resolve(
            "tiny/flow-grpo-fast", [judge, f"{reward}, form: {form}}}"], Path(os.devnull)
        )
        found = dict(without_effect(config))
        assert ("rewards.unified_reward_think.both_orders" in found) == warned


@pytest.mark.parametrize("recipe", recipe_names(recipes_directory()))
def test_no_recipe_sets_what_has_no_effect(recipe: str) -> None:
    assert not [
        text
        for text in plan(resolve(recipe, [], Path(os.devnull))).warnings
        if "does nothing" in text
    ]


def test_memory_is_read_from_the_files_of_the_model(model: Path) -> None:
    config = configured(f"policy.path={model}", "policy.lora.rank=3")

    facts = read_model_facts(config)

    assert isinstance(facts, SD3Facts)
    assert facts.parameters == 100 + 10 + 40
    assert facts.adapter_parameters == 3 * (10 + 10)
    assert facts.frozen_bytes == 7 * 2 + 5 * 4
    assert (facts.vae_parameters, facts.text_parameters) == (7, 5)
    assert facts.latent_values == 4 * 8 * 8
    assert facts.tokens == 16 + 16 + config.policy.max_sequence_length
    assert facts.condition_values == (16 + config.policy.max_sequence_length) * 6 + 7
    assert (facts.width, facts.layers) == (10, 3)
    assert (facts.pixels, facts.vae_channels) == (32 * 32, 16)


def test_the_size_of_the_images_counts(model: Path) -> None:
    facts = read_model_facts(configured(f"policy.path={model}", "policy.resolution=64"))
    assert isinstance(facts, SD3Facts)
    assert (facts.latent_values, facts.image_tokens, facts.pixels) == (4 * 16 * 16, 64, 64 * 64)
    with pytest.raises(PlanError, match=r"policy\.resolution: 36 pixels; .* a multiple of 8"):
        plan(configured(f"policy.path={model}", "policy.resolution=36"))


def memory_of(model: Path, *overrides: str, ranks: int = 1) -> tuple[Memory, SD3Facts]:
    config = configured(f"policy.path={model}", *overrides)
    facts = read_model_facts(config)
    assert isinstance(facts, SD3Facts)
    return estimate(config, facts, images=10, actions=2, ranks=ranks), facts


def test_memory_formula(model: Path) -> None:
    memory, _ = memory_of(model)
    held = memory.held
    assert held["base"] == held["gradients"] == 4 * 150
    assert held["optimizer"] == 8 * 150
    assert held["autoencoder"] == 4 * 7
    assert held["experience"] == 4 * 10 * 2 * 3 * 256
    assert memory.phases["prompts"] == {"text encoders": 4 * 5}
    assert memory.at("prompts") == 4 * 5, "nothing else is loaded yet"
    assert memory.peak == max(memory.at(phase) for phase in memory.phases)
    assert memory.host == {"moving average": 8 * 150, "checkpoint": 4 * 4 * 150}
    assert plan(configured(f"policy.path={model}")).memory is not None


def test_embeddings_on_the_device(model: Path) -> None:
    """As many as there are or are kept there, or those of the step, where these are more."""
    memory, facts = memory_of(model, "data.train_prompts=20", "data.heldout_prompts=9")
    assert memory.held["embeddings"] == 4 * (1 + 20 + 9) * facts.embedding_values
    memory, facts = memory_of(model, "data.train_prompts=20000000")
    assert memory.held["embeddings"] == EMBEDDINGS_ON_DEVICE
    config = configured(f"policy.path={model}", "data.train_prompts=20000000")
    large = replace(facts, text_width=10**6)
    needed = bytes_on_device(config, large, images=10)
    assert needed == 4 * 10 * large.embedding_values > EMBEDDINGS_ON_DEVICE
    rows = 4 * 2 * config.rollout.micro_batch_size * facts.embedding_values
    guided, _ = memory_of(model, "rollout.guidance_scale=4")
    assert guided.phases["rollout"]["rows of embeddings"] == rows
    assert guided.phases["replay"]["rows of embeddings"] == rows


def test_an_adapter_trains_little_and_needs_no_reference_copy(model: Path) -> None:
    full, _ = memory_of(model, "algorithm.beta=0.1")
    lora, facts = memory_of(
        model,
        "algorithm.beta=0.1",
        "policy.trainable=lora",
        "policy.dtype=bfloat16",
        "policy.base_dtype=bfloat16",
    )
    assert full.held["reference"] == 4 * 150
    assert (lora.held["reference"], lora.held["base"]) == (0, 2 * 150)
    assert lora.held["optimizer"] == 8 * facts.adapter_parameters
    assert lora.phases["replay"]["16-bit copies"] == 0
    assert lora.held["moving average"] == 8 * facts.adapter_parameters, "beside the adapter"
    assert "moving average" not in lora.host


def test_engines_share_out_and_offload_what_they_say(model: Path) -> None:
    zero = ["launch.engine=deepspeed", "launch.zero_stage=3"]
    ddp, _ = memory_of(model, ranks=2)
    two, _ = memory_of(model, zero[0], ranks=2)
    three, _ = memory_of(model, *zero, ranks=2)
    away, _ = memory_of(model, *zero, "launch.offload=true", ranks=2)
    assert (ddp.held["optimizer"], ddp.held["buckets"]) == (8 * 150, 4 * 150)
    assert (two.held["optimizer"], two.held["gradients"]) == (12 * 75, 4 * 75)
    assert (two.held["base"], three.held["base"]) == (4 * 150, 2 * 150)
    assert three.phases["replay"]["gathered weights"] == 4 * 150
    assert "optimizer" not in away.held
    assert away.host["optimizer"] == 12 * 75
    assert away.phases["update"]["optimizer's temporaries"] == 0
    assert ddp.phases["update"]["optimizer's temporaries"] == 0
    assert two.phases["update"]["optimizer's temporaries"] == 4 * 75
    assert "launch.offload: needs" in refusal("launch.offload=true")


def test_a_sum_of_weight_and_adapter_needs_digits() -> None:
    fast = ("policy.transformer=fast", "policy.trainable=lora", "policy.lora.folded=true")
    told = refusal(*fast, "policy.dtype=bfloat16")
    assert "policy.lora.folded: a sum of weight and adapter rounded to bfloat16" in told
    assert not [one for one in planned(*fast).warnings if "folded" in one]


def test_recorded_passes_of_a_fast_transformer_hold_memory_of_their_own(model: Path) -> None:
    fast = "policy.transformer=fast"
    plain, facts = memory_of(model)
    recorded, _ = memory_of(model, fast)
    guided, _ = memory_of(model, fast, "rollout.guidance_scale=2")
    activations = plain.phases["rollout"]["activations or decoding"]
    row = 4 * (facts.condition_values + facts.latent_values)
    inputs = 16 * row
    assert plain.held["recorded passes"] == 0
    assert 0 < recorded.held["recorded passes"] - inputs <= activations
    # Both branches of the rollout's, and held-out images as before in the same memory.
    assert guided.held["recorded passes"] == 2 * recorded.held["recorded passes"] + inputs
    no_images = memory_of(model, fast, "rollout.guidance_scale=2", "train.evaluate_every=0")[0]
    assert no_images.held["recorded passes"] == 2 * recorded.held["recorded passes"]
    for off in ("policy.compile=false", "launch.device=cpu"):
        assert memory_of(model, fast, off)[0].held["recorded passes"] == 0


def test_recomputed_activations_and_sliced_decoding_need_less(model: Path) -> None:
    plain, facts = memory_of(model)
    less, _ = memory_of(model, "policy.gradient_checkpointing=true", "policy.vae.slicing=true")
    guided, _ = memory_of(model, "rollout.guidance_scale=2")
    value = 16 * facts.tokens * facts.width * 4
    assert plain.phases["replay"]["activations"] == 27 * 3 * value
    assert less.phases["replay"]["activations"] == (27 + 3) * value
    assert guided.phases["replay"]["activations"] == 2 * 27 * 3 * value
    name = "activations or decoding"
    assert less.phases["rollout"][name] < plain.phases["rollout"][name]


def test_held_out_images_are_made_while_training(model: Path) -> None:
    """So many together as there are, and by their own guidance; nothing where none are made."""
    own = ["rollout.micro_batch_size=8", "evaluation.micro_batch_size=32", "train.evaluate_every=2"]
    memory, facts = memory_of(model, *own, "train.steps=4")
    rollout, evaluation = memory.phases["rollout"], memory.phases["evaluation"]
    name = "activations or decoding"
    assert evaluation[name] == 4 * rollout[name]
    assert evaluation["rows of embeddings"] == 4 * 32 * facts.embedding_values
    guided, _ = memory_of(model, *own, "evaluation.guidance_scale=4")
    assert guided.phases["evaluation"]["rows of embeddings"] == 2 * 4 * 32 * facts.embedding_values
    few, _ = memory_of(model, *own, "evaluation.periodic_prompts=16")
    assert few.phases["evaluation"][name] == 2 * rollout[name]
    for none in ("train.evaluate_every=0", "train.steps=1"):
        assert "evaluation" not in memory_of(model, *own, none)[0].phases


# SD3.5-Medium at 512x512 with 205 text tokens, as it was measured.
SD35M = SD3Facts(
    parameters=2_243_000_000,
    adapter_parameters=18_780_000,
    text_parameters=5_500_000_000,
    vae_parameters=84_000_000,
    frozen_bytes=0,
    latent_values=16 * 64 * 64,
    image_tokens=1024,
    text_tokens=205,
    text_width=4096,
    pooled_width=2048,
    width=1536,
    layers=24,
    pixels=512 * 512,
    vae_channels=256,
)


@pytest.mark.parametrize(
    ("batch", "guidance", "checkpointing", "base", "gibibytes"),
    [
        (8, 1.0, False, "float32", 30.7),
        (8, 4.5, False, "float32", 48.8),
        (24, 1.0, False, "float32", 66.8),
        (8, 1.0, True, "float32", 11.5),
        (24, 1.0, True, "float32", 14.7),
        (8, 1.0, False, "float16", 23.3),
    ],
)
def test_the_estimate_agrees_with_what_was_measured_on_sd35_medium(
    batch: int, guidance: float, checkpointing: bool, base: str, gibibytes: float
) -> None:
    """Measured without an autoencoder: the replay of one micro-batch."""
    config = configured(
        "policy.trainable=lora",
        "policy.text.disk_gigabytes=20",  # or its text encoders stay
        "policy.dtype=float16",
        f"policy.base_dtype={base}",
        f"policy.gradient_checkpointing={checkpointing}",
        f"rollout.micro_batch_size={batch}",
        f"rollout.guidance_scale={guidance}",
    )
    memory = estimate(config, SD35M, images=batch, actions=1, ranks=1)
    found = memory.at("replay") - memory.held["autoencoder"]
    assert found / 2**30 == pytest.approx(gibibytes, rel=0.15)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model_index.json", None),
        ("transformer/config.json", "{}"),
        ("vae/config.json", "{}"),
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


def test_stored_images_in_flight_take_space() -> None:
    """192 images, a window of two steps: three latents as sampled, and as many of noise."""
    overrides = ["train.one_step_off=true", "train.in_flight=store"]
    stored, drained = (
        checkpoint_bytes(config, facts)
        for config in (resolve(None, one, Path(os.devnull)) for one in (overrides, overrides[:1]))
        if (facts := read_model_facts(config)) is not None
    )
    assert stored - drained == 4 * 192 * 2 * 3 * 4 * 16 * 16


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
    assert warned(needed - 1, *keeps_three, "train.ema.enabled=false", "export.weights=raw") == []


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["policy.base_dtype=bfloat16"], "policy.base_dtype: bfloat16 holds what is frozen"),
        (
            ["policy.trainable=lora", "policy.base_dtype=float16", "policy.dtype=bfloat16"],
            "policy.base_dtype: float16, but policy.dtype computes in bfloat16",
        ),
        (["policy.dtype=float16", "launch.engine=deepspeed"], "policy.dtype: float16 needs"),
    ],
)
def test_dtypes_that_exclude_each_other(overrides: list[str], text: str) -> None:
    assert text in refusal(*overrides)


def test_a_fast_transformer_needs_whole_weights() -> None:
    shards = ("launch.engine=deepspeed", "launch.zero_stage=3")
    text = refusal("policy.transformer=fast", *shards)
    assert "policy.transformer: fast multiplies with weights of several layers at once" in text
    assert "use stock here, or launch.zero_stage: 2" in text
    for others in (("launch.engine=deepspeed",), ("launch.zero_stage=3",)):
        planned("policy.transformer=fast", *others)


def test_only_a_hub_id_has_revisions(model: Path) -> None:
    settings = configured(f"policy.path={model}", "policy.revision=main")
    with pytest.raises(PlanError, match=r"policy\.revision: .* only a hub id has revisions"):
        plan(settings)
    assert planned("policy.revision=main").memory is None


def test_a_misspelt_folder_is_not_taken_for_a_hub_id() -> None:
    told = refusal("policy.path=assets/tiny-sd")
    assert "assets/tiny-sd: there is no such directory; did you mean assets/tiny-sd3?" in told
    hub = planned("policy.path=somebody/tiny-sd").warnings
    assert any("somebody/tiny-sd is no local directory: taken for a hub id" in one for one in hub)
