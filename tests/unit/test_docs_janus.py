"""docs/coming-from-focusdiff-and-janus-pro-r1.md: their keys and constants, and keys of ours."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from atelier.algorithms.advantages import EPSILON
from atelier.config.paths import repository_root
from atelier.config.plan import plan
from atelier.config.rejections import rejections
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.theirs import JANUS_KEYS, JANUS_PAGE
from atelier.config.token_rules import token_rejections
from atelier.policies.janus.original_layout import to_original
from atelier.policies.janus.policy import open_checkpoint
from atelier.stages.prompts_here import prompts_here
from tests.support.coming_from import KeyedPageTests, rows, words
from tests.support.random_janus import build_model, build_processor

KEYS, CONSTANTS = "Every key of the recipes", "Every constant in the code"

# The keys of their recipes, with those of TRL and of the launcher that matter.
THEIRS = {
    "FocusDiff": """model_name_or_path model_revision torch_dtype num_processes dataset_name
        dataset_configs bf16 use_vllm vllm_device vllm_gpu_memory_utilization do_eval eval_strategy
        eval_steps gradient_accumulation_steps num_generations lr_scheduler_type save_only_model
        learning_rate use_self_lr_scheduler warmup_ratio warm_up_steps convert_steps convert_lr
        min_lr log_level logging_steps logging_strategy max_prompt_length max_completion_length
        max_steps num_train_epochs output_dir pretrain_path ref_pretrain_path overwrite_output_dir
        report_to per_device_eval_batch_size per_device_train_batch_size push_to_hub save_strategy
        save_steps seed temperature weight not_paired_data_path paired_data_path internvl_tp
        image_path generate_with_cfg guidance_scale set_epsilon epsilon use_clip_score""",
    "Janus-Pro-R1": """model_path datap logging_dir reverse set_epsilon following preserving
        addselft2i""",
    "TRL and accelerate": """beta sync_ref_model num_machines distributed_type mixed_precision
        deepspeed_config fsdp_config""",
}

# What stands in their code and in no recipe, as the page has it.
IN_THEIR_CODE = (
    *("T = 1 for image tokens", "no top-k", "guidance in the loss", "null prompt", "width 4096"),
    *("576 tokens", "pad id 100015", "5661 and 3233", "flash attention", "gradient checkpointing"),
    *("1e-4 added", "ddof 1", "not clipped", "clip 0.2", "k3 KL", "mean over a sequence"),
    *("0.9, 0.999, 1e-8, weight decay 0", "gradient norm 1.0", "one update on each batch"),
    *("50, 450, 1200", "0.25", "G - 2", "one baseline for both", "as if it were drawn"),
    *("80 answer tokens", "T = 1 for answers", "first token restricted", "EOS is not trained"),
    *("question text about the image", "another image", "VQ re-encode", "a third each"),
    *("two images", "contexts are constant", "accepted images are drawn again"),
    *("question texts", "three casings", "top 50", "4 decimals", "threads 16, for edits 24"),
    *("5 attempts", "no timeout", "score 0 on failure", "URL", "following 1, preserving 1"),
    *("200 tokens", "384 crop", "half of the pairs", "odd unpaired line", "2 images a caption"),
)

# Learning rate, and where its slope changes and ends; updates of the warm-up and
# until the change; images a prompt; items of a rank x accumulation x ranks; updates between saves.
FOCUSDIFF = (1e-5, 2e-6, 2e-7, 100, 300, 7, 1 * 4 * 8, 100)
R1_DRAWING = (3e-7, 1e-7, 5e-8, 5, 30, 8, 1 * 4 * 8, 25)
R1_EDITING = (3e-6, 1e-6, 2e-7, 5, 75, 8, 1 * 4 * 8, 50)
PUBLISHED = {
    "grpo": FOCUSDIFF,
    "pair-grpo": FOCUSDIFF,
    "introspective-v1": R1_DRAWING,
    "introspective-v2": R1_DRAWING,
    "introspective-v3": R1_DRAWING,
    "edit": R1_EDITING,
}


def recipe(name: str) -> RunConfig:
    return resolve(name, params_file=Path(os.devnull))


class TestPage(KeyedPageTests):
    page, keys, fewest = JANUS_PAGE, KEYS, 70
    answering = (KEYS, CONSTANTS)
    theirs = tuple(words(" ".join(THEIRS.values())))
    hints = JANUS_KEYS


@pytest.mark.parametrize("constant", IN_THEIR_CODE)
def test_every_constant_of_theirs_is_in_a_table(constant: str) -> None:
    assert any(constant in cells[0] for cells in rows(JANUS_PAGE, CONSTANTS))


@pytest.mark.parametrize("name", PUBLISHED)
def test_recipes_have_the_published_numbers(name: str) -> None:
    config = recipe(f"janus-pro-7b/{name}")
    train, schedule = config.train, config.train.schedule
    prompts_an_item = 2 if name == "pair-grpo" else 1
    assert schedule.kind == "two_slopes"
    assert (
        train.learning_rate,
        schedule.convert_rate,
        schedule.last_rate,
        schedule.warm_up_updates,
        schedule.convert_updates,
        config.rollout.group_size,
        train.prompts_per_step // prompts_an_item,
        train.checkpoint_every,
    ) == PUBLISHED[name]
    assert config.launch.processes == 8
    assert (config.launch.engine, config.launch.zero_stage) == ("deepspeed", 2)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("size", ["1b", "7b"])
def test_recipes_have_their_constants(name: str, size: str) -> None:
    config = recipe(f"janus-pro-{size}/{name}")
    algorithm, rollout, train = config.algorithm, config.rollout, config.train
    assert (rollout.guidance_scale, algorithm.beta, algorithm.clip_range) == (5.0, 0.04, 0.2)
    tokens = rollout.tokens
    assert (tokens.temperature, tokens.top_k, tokens.top_p) == (1.0, 0, 1.0)
    assert (tokens.log_prob, rollout.old_log_prob) == ("cfg_tempered", "recompute")
    assert (algorithm.kl, algorithm.loss_mean) == ("k3", "sequence")
    assert (algorithm.advantage_ddof, algorithm.advantage_clip, EPSILON) == (1, 1e6, 1e-4)
    assert (train.adam_betas, train.adam_epsilon, train.weight_decay) == ((0.9, 0.999), 1e-8, 0.0)
    assert (train.max_grad_norm, train.updates_per_step, train.inner_epochs) == (1.0, 1, 1)
    assert config.policy.gradient_checkpointing
    assert not train.ema.enabled
    assert not list(token_rejections(config))


def test_pair_grpo_has_its_constants() -> None:
    config = recipe("janus-pro-7b/pair-grpo")
    truth = config.algorithm.ground_truth
    assert config.algorithm.advantage_over == "pair"
    assert truth.enabled
    assert (truth.full_updates, truth.low_updates, truth.none_updates) == (50, 450, 1200)
    assert (truth.start, truth.low) == (1.0, 0.25)
    assert (truth.importance, truth.coefficient, truth.kl) == ("as_sampled", 1.0, True)
    assert config.rollout.micro_batch_size == 14


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_introspection_has_its_constants(version: str) -> None:
    config = recipe(f"janus-pro-7b/introspective-{version}")
    settings = config.rollout.introspection
    assert (config.rollout.kind, settings.version) == ("introspect", version)
    assert (settings.rounds, settings.answer_tokens, settings.answer_temperature) == (2, 80, 1.0)
    assert (settings.restricted_first_token, settings.train_end) == (False, True)
    assert settings.constant_context


def test_editing_has_its_constants() -> None:
    config = recipe("janus-pro-7b/edit")
    reward = config.rewards.edit_yes_no
    assert config.rollout.kind == "edit"
    assert reward is not None
    assert (reward.following_weight, reward.preserving_weight, reward.gate) == (1.0, 0.25, "none")


def test_judges_have_the_numbers_of_the_page() -> None:
    judge = recipe("janus-pro-7b/grpo").judges["internvl"]
    assert (judge.top_logprobs, judge.concurrency, judge.retries) == (20, 8, 5)
    assert (judge.timeout, judge.deadline) == (120.0, 600.0)


# What is written of one's own files -------------------------------------------------------------

COMMANDS = re.findall(
    r"atelier run --recipe (\S+)((?:\s+\\?\s*--set \S+)+)",
    (repository_root() / JANUS_PAGE).read_text(encoding="utf-8"),
)


def sets(text: str) -> list[str]:
    return re.findall(r"--set\s+(data\.\S+|evaluation\.\S+)", text)


def header(name: str) -> str:
    """The comments of a recipe and of its base, as one line."""
    folder = repository_root() / "recipes" / name.partition("/")[0]
    files = (folder / f"{name.partition('/')[2]}.yaml", folder / "base.yaml")
    lines = [one for file in files for one in file.read_text(encoding="utf-8").splitlines()]
    return " ".join(one.lstrip("# ") for one in lines if one.startswith("#"))


def require_plan(name: str, overrides: list[str], folder: Path) -> None:
    """A plan that works, and warns of nothing that the recipe or the page itself says."""
    (file,) = [one for one in overrides if one.startswith("data.path=")]
    path = folder / file.partition("=")[2]
    path.write_text("{}")
    rest = [one.rstrip(".;,") for one in overrides if one != file]
    found = plan(resolve(name, [*rest, f"data.path={path}"], Path(os.devnull)))
    said = ("data.", "evaluation.", "judges.", "rollout.group_size")
    assert not [one for one in found.warnings if one.startswith(said)]


@pytest.mark.parametrize(
    "name", [f"janus-pro-{size}/{own}" for size in ("1b", "7b") for own in PUBLISHED]
)
def test_the_header_of_a_recipe_says_how_ones_own_data_is_used(name: str, tmp_path: Path) -> None:
    own = name.endswith(("pair-grpo", "edit"))
    words = header(name)
    start = words.index("Its data:") if own else words.index("Your own")
    overrides = sets(words[start:].partition("judge=examiner")[0] + "judge=examiner")
    assert len(overrides) == (3 if own else 4)
    require_plan(name, overrides, tmp_path)


@pytest.mark.parametrize(("name", "settings"), [one for one in COMMANDS if "data." in one[1]])
def test_commands_of_the_page_are_plans_that_work(name: str, settings: str, tmp_path: Path) -> None:
    require_plan(name, sets(settings), tmp_path)


def test_the_run_of_the_page_is_a_plan_that_works(tmp_path: Path) -> None:
    page = (repository_root() / JANUS_PAGE).read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(inherits.*?)```", page, re.DOTALL)
    pairs = [{"prompt1": f"a {i}", "prompt2": f"b {i}", "image1": None} for i in range(100)]
    pairs[1]["image1"] = "a.png"
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    held = [{"category": "c", "caption1": "a 0", "caption2": "new"}]
    files = {"pairs.json": pairs, "PairComp.json": held}
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content))
    (tmp_path / "unpaired.txt").write_text("a dog\na cat\n")
    text = text.replace("data/prompts/", f"{tmp_path}/").replace("checkpoints/", f"{tmp_path}/")
    torch.save({}, tmp_path / "janus-sft.pth")
    (tmp_path / "mine.yaml").write_text(text)
    config = resolve(str(tmp_path / "mine.yaml"), (), Path(os.devnull))
    assert config.rollout.group_size == 7
    found = prompts_here(config)
    assert found is not None
    assert (found.train, found.heldout, found.with_truth) == (2 * 99 + 2, 2, 1)
    assert not [key for key, _ in rejections(config, 8)]


def test_a_run_may_not_end_before_its_rate_does() -> None:
    config = resolve("janus-pro-7b/grpo", ["train.steps=300"], Path(os.devnull))
    assert [key for key, _ in token_rejections(config)] == ["train.schedule.convert_updates"]


def test_a_folder_of_the_original_layout_becomes_the_start_as_the_page_says(tmp_path: Path) -> None:
    theirs = build_model(seed=9)
    weights = {name: one.contiguous() for name, one in to_original(theirs.state_dict()).items()}
    names = sorted(weights)
    folder = tmp_path / "theirs"
    folder.mkdir()
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, folder / f"model-{number}.safetensors")
    page = (repository_root() / JANUS_PAGE).read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "start.pth"
    exec(code.replace('"FOLDER"', repr(str(folder))).replace('"FILE.pth"', repr(str(file))), {})

    build_model().save_pretrained(tmp_path / "layout")
    build_processor().save_pretrained(tmp_path / "layout")
    policy = PolicyConfig(family="janus", path=str(file), layout=str(tmp_path / "layout"))
    found = open_checkpoint(policy).model
    assert torch.equal(found.lm_head.weight, theirs.lm_head.weight)
    assert torch.equal(
        found.model.generation_embeddings.weight, theirs.model.generation_embeddings.weight
    )
