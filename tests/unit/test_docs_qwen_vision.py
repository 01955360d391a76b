"""docs/coming-from-qwen-vision-grpo.md: every setting of the guide and its scripts, and ours; and
the recipes' numbers, which are the guide's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from atelier.config.device_batch import prompts_per_step
from atelier.config.facts.read import known_facts
from atelier.config.memory.estimate import Memory
from atelier.config.memory_advice import GIBIBYTE
from atelier.config.paths import repository_root
from atelier.config.plan import Plan, plan
from atelier.config.recipes import recipe_names, recipes_directory
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.space import checkpoint_bytes
from atelier.config.theirs import JANUS_KEYS, QWEN_KEYS, QWEN_PAGE, TRL_KEYS, key_hint
from tests.support.coming_from import KeyedPageTests, rows, words

KEYS, CONSTANTS = "Every key of the launch scripts", "Everything set in the code"
CONTRADICTIONS = "Where the guide contradicts itself"
PAGE = repository_root() / QWEN_PAGE

# Keys that the scripts set, or whose defaults act.
TRL = words(
    """
    model_name_or_path torch_dtype bf16 attn_implementation use_peft lora_r lora_alpha
    lora_target_modules lora_dropout gradient_checkpointing num_generations
    per_device_train_batch_size gradient_accumulation_steps generation_batch_size
    steps_per_generation num_iterations max_steps max_prompt_length max_completion_length
    temperature top_p use_vllm vllm_mode vllm_gpu_memory_utilization
    vllm_importance_sampling_correction vllm_importance_sampling_cap loss_type scale_rewards
    epsilon epsilon_high beta mask_truncated_completions reward_weights learning_rate
    lr_scheduler_type warmup_steps seed save_steps save_total_limit save_only_model
    resume_from_checkpoint logging_steps log_completions report_to output_dir
    """
)
ACCELERATE = words(
    """
    num_processes num_machines distributed_type mixed_precision zero_stage
    offload_optimizer_device offload_param_device zero3_init_flag zero3_save_16bit_model
    """
)

# What stands in their code, as the page has it.
IN_THEIR_CODE = (
    *("1024 x 1024", "8 steps, guidance 1", "50 steps, guidance 4", "at most 64", "8, then 4"),
    *("one pipeline a rank", "generator(0)", "one space", "condition image", "reference image"),
    *("system sentence", "57 or 64", "padding counted twice", "512 tokens", "edits 1024"),
    *("Picture 1:", "train mode", "o3, effort high", "gpt-4o-2024-11-20", "gpt-5-mini"),
    *("readability x fidelity", "SAM 2 and PaddleOCR", "0.6 IF + 0.4 PQ", "measurements"),
    *("weight 0.5", '"think"', "32 questions", "150 s for a judge", "120 s for SAM 2"),
    *("2 retries", "no cache, no budget", "0 for a part", "0.5 for a function", "OPENAI_API_KEY"),
    *("seed 42", "test_real or test_syn", "8, 1-8 or 1,3,5", "1000 rows", "last 100 rows"),
    *("59 cells, 5 levels", "modulo", "N best and N worst", "generated_images"),
    *("60 s, 500 MB, 10 %",),
)

# What the guide says and what it also says (the guide's own page).
CONTRADICTORY = (
    *("rank 32", "16 completions a step", "60 GB", "a judge has 120 s", "dr_grpo", "ZeRO-2"),
    *("the same noise", "completions of 512", "34 tokens dropped", "identity preservation"),
    *('"advantage"', "learning rate 1e-5", "no warm-up", "Qwen-Image-Edit"),
)

FILES = (
    *("run_8gpu.sh", "run_8gpu_full_finetune.sh", "run_8gpu_qwen_image.sh"),
    *("monitor_and_run.sh", "training.log"),
)


def recipe(name: str, *overrides: str) -> RunConfig:
    return resolve(name, overrides, Path(os.devnull))


def header(name: str) -> str:
    """The comments of a recipe, as one line."""
    text = (recipes_directory() / f"{name}.yaml").read_text(encoding="utf-8")
    return " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))


class TestPage(KeyedPageTests):
    page, keys, fewest = QWEN_PAGE, KEYS, 70
    answering = (KEYS, CONSTANTS)
    theirs = (*TRL, *ACCELERATE)
    hints = QWEN_KEYS


@pytest.mark.parametrize("key", sorted(QWEN_KEYS.keys() - TRL_KEYS.keys() - JANUS_KEYS.keys()))
def test_a_key_of_theirs_alone_leads_to_the_page(key: str) -> None:
    hint = key_hint(key, is_ours=False)
    assert QWEN_PAGE in hint
    assert all(one in hint for one in QWEN_KEYS[key])


@pytest.mark.parametrize("constant", IN_THEIR_CODE)
def test_everything_of_theirs_is_in_a_table(constant: str) -> None:
    assert any(constant in cells[0] for cells in rows(QWEN_PAGE, CONSTANTS))


@pytest.mark.parametrize("claim", CONTRADICTORY)
def test_every_contradiction_is_named_and_resolved(claim: str) -> None:
    (found,) = [cells for cells in rows(QWEN_PAGE, CONTRADICTIONS) if claim in cells[0]]
    assert len(found) == 4
    assert all(found[:3])


@pytest.mark.parametrize("file", FILES)
def test_every_script_has_a_counterpart(file: str) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## ")[0]
    assert f"{file}`" in text


def test_the_run_of_the_page_is_a_plan_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "word")  # as the page says
    monkeypatch.setattr("atelier.config.gpu_seen.gpu_is_seen", lambda: True)
    (text,) = re.findall(r"```yaml\n(inherits.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for file in re.findall(
        r"(?:data/prompts|checkpoints|runs/ID/baseline)/(\S+)",
        text.replace("}", "").replace(",", ""),
    ):
        (tmp_path / file).write_text("{}")
    own = tmp_path / "mine.yaml"
    own.write_text(re.sub(r"(data/prompts|checkpoints|runs/ID/baseline)/", f"{tmp_path}/", text))
    made = plan(recipe(str(own)))
    assert made.prompts_per_step == 8
    said = [one for one in made.warnings if not one.startswith("export.formats")]
    assert [one.partition(":")[0] for one in said] == ["judges.o3.budget.money"]
    cost = dict(made.judge_costs)["o3"]
    assert f"the plan says {cost.money:,.0f} to {cost.most:,.0f}" in text


# Recipes ----------------------------------------------------------------------------------------


def memory_of(made: Plan) -> Memory:
    assert made.memory is not None
    return made.memory


def test_the_recipe_of_mmmg_has_the_published_numbers() -> None:
    """(8 devices, 16 each, accumulation 1, G 16) are 8 prompts."""
    config = recipe("qwen-image/mmmg-lora")
    made = plan(config)
    assert (made.prompts_per_step, made.group_size, made.steps) == (8, 16, 500)
    assert (made.samples_per_step, made.images, made.judge_calls) == (128, 64_000, 64_000)
    assert made.accumulation == 1
    assert (config.policy.lora.rank, config.policy.lora.alpha) == (128, 256)
    algorithm, rollout, train = config.algorithm, config.rollout, config.train
    assert (algorithm.loss_mean, algorithm.clip_range, algorithm.clip_range_high) == (
        *("token", 0.2, 0.28),
    )
    assert (algorithm.beta, algorithm.advantage_std, algorithm.advantage_ddof) == (0, "group", 1)
    assert (rollout.num_inference_steps, rollout.guidance_scale) == (8, 1)
    assert (rollout.environment.preset, rollout.completion.temperature) == ("lightning", 1)
    assert (train.learning_rate, train.schedule.kind) == (1e-5, "constant")
    assert (train.checkpoint_every, train.keep_checkpoints) == (50, 10)
    judge = config.judges["o3"]
    assert (judge.model, judge.parameters["reasoning_effort"]) == ("o3", "high")
    assert (judge.concurrency, judge.timeout) == (32, 150)
    assert config.launch.processes == 8


def test_the_recipes_of_complex_edit_have_the_published_numbers() -> None:
    """(8 devices, 2 each, accumulation 1, G 16) are one prompt."""
    adapter, full = (recipe(f"qwen-image-edit/complex-edit-{how}") for how in ("lora", "full"))
    for config in (adapter, full):
        made = plan(config)
        assert (made.prompts_per_step, made.group_size, made.steps) == (1, 16, 1000)
        assert (made.micro_batch_size, made.accumulation, made.processes) == (2, 1, 8)
        assert made.judge_calls == 2 * 16_000
        algorithm, rollout = config.algorithm, config.rollout
        assert (algorithm.loss_mean, algorithm.advantage_std) == ("constant", "none")
        assert (algorithm.beta, algorithm.clip_range) == (0, 0.2)
        assert (rollout.num_inference_steps, rollout.guidance_scale) == (50, 4)
        assert rollout.environment.preset == "released"
        reward = config.rewards.complex_edit
        assert reward is not None
        assert (reward.if_weight, reward.ip_weight, reward.pq_weight) == (0.6, 0, 0.4)
        assert config.judges[reward.judge].model == "gpt-4o-2024-11-20"
        assert config.policy.path == "Qwen/Qwen-Image-Edit-2509"
        assert config.policy.gradient_checkpointing
    assert (adapter.train.learning_rate, full.train.learning_rate) == (1e-5, 5e-6)
    assert (adapter.policy.lora.rank, adapter.policy.lora.alpha) == (128, 256)
    assert (full.policy.trainable, full.launch.engine, full.launch.zero_stage) == (
        *("full", "deepspeed", 2),
    )


@pytest.mark.parametrize(
    ("batch", "prompts"), [((1, 2, 8, 8), 2), ((2, 1, 8, 16), 1), ((16, 1, 8, 16), 8)]
)
def test_batches_of_the_guide_are_steps_here(batch: tuple[int, ...], prompts: int) -> None:
    assert prompts_per_step(*batch) == prompts


def test_the_headers_of_complex_edit_say_what_else_they_take() -> None:
    """What activations take that are not recomputed, the copy of full training, a checkpoint."""
    lora, full = (f"qwen-image-edit/complex-edit-{how}" for how in ("lora", "full"))
    kept = memory_of(plan(recipe(lora, "policy.gradient_checkpointing=false"))).peak
    assert f"which takes {kept / GIBIBYTE:.0f} GiB" in header(lora)
    config = recipe(full)
    copy = memory_of(plan(config)).held["negative prompt"]
    assert f"in bfloat16 ({copy / GIBIBYTE:.0f} GiB)" in header(full)
    facts = known_facts(config)
    assert facts is not None
    assert f"A checkpoint takes {checkpoint_bytes(config, facts) / 1e9:.0f} GB" in header(full)


QWEN_RECIPES = [one for one in recipe_names(recipes_directory()) if one.startswith("qwen-image")]


@pytest.mark.parametrize("name", [one for one in QWEN_RECIPES if not one.endswith("/base")])
def test_headers_say_what_the_plan_says(name: str) -> None:
    lines = header(name)
    (said,) = re.findall(r"the plan says (\d+) GiB", lines)
    peak = memory_of(plan(recipe(name))).peak / GIBIBYTE
    assert int(said) == int(peak)
    assert "Where the guide contradicts itself" in lines


@pytest.mark.parametrize("name", QWEN_RECIPES)
def test_memory_is_that_of_the_parts(name: str) -> None:
    """41 GB of the transformer; 16.6 GB of the text encoder, or twice that where all is trained."""
    config = recipe(name)
    held = memory_of(plan(config)).held
    encoder = held["base"] + held["vision tower"]
    full = config.policy.trainable == "full"
    assert encoder / 1e9 == pytest.approx(33.2 if full else 16.6, abs=0.1)
    assert held["frozen transformer"] / 1e9 == pytest.approx(40.9, abs=0.1)
    assert held["autoencoder"] / 1e9 == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("name", "start", "judge"),
    [
        ("qwen-image/mmmg-lora", "Its data", "evaluation.mmmg.judge=examiner"),
        ("qwen-image-edit/base", "The published ones", "evaluation.complex_edit.judge=examiner"),
    ],
)
def test_the_header_says_how_the_published_data_is_used(
    name: str, start: str, judge: str, tmp_path: Path
) -> None:
    words = header(name)
    words = words[words.index(start) :].partition(judge)[0] + judge
    settings = re.findall(r"--set\s+(\S+)", words)
    assert len(settings) == 4
    file = tmp_path / "file"
    file.write_text("{}")
    own = [re.sub(r"=FILE\S*", f"={file}", one.rstrip(".;,")) for one in settings]
    suite = judge.rpartition(".")[0]
    made = plan(recipe(name, *own))
    assert not [one for one in made.warnings if one.startswith(("data.path", suite))]
