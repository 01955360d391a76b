"""docs/coming-from-deepgen-rl.md: parameters, variables, ports and steps of the guide, and ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atelier.config.theirs import JANUS_KEYS, QWEN_KEYS, TRL_KEYS, key_hint
from atelier.config.theirs_deepgen import DEEPGEN_KEYS, DEEPGEN_PAGE
from atelier.config.variables import VARIABLES
from flows import command_line
from tests.support.coming_from import PageTests, Row, default_of, ours_in, quoted, rows, words

GUIDE = Path(__file__).resolve().parents[3] / "shared" / "seeds" / "deepgen-rl-training.md"
KEYS, NAMES, STEPS = "Every parameter", "Variables", "The steps of the guide"

# The whole command line.
THEIRS = words(
    """
    model_config checkpoint output_dir num_train_epochs max_steps learning_rate
    lr_scheduler_type warmup_steps logging_steps save_steps save_total_limit bf16
    dataloader_num_workers rollout_n rollout_micro_batch_size rollout_global_batch_size
    atrain_micro_batch_size atrain_global_batch_size log_prob_micro_batch_size
    atrain_num_actor_update_steps beta cfg_scale num_inference_steps image_height
    image_width log_images_interval reward_funcs prompts_file dataset_config report_to
    run_name log_component_grad_norm log_component_grad_norm_every log_tflops
    log_tflops_every log_tflops_warmup_steps deepspeed local_rank gradient_checkpointing
    max_grad_norm sftaux_dataset_config sftaux_coef sftaux_every_n_steps
    sftaux_micro_batch_size sftaux_num_workers sftaux_disable_on_error init_same_noise
    timestep_fraction ema_diffusion clip_range sde_eta atrain_algorithm atrain_nft_beta
    atrain_nft_adv_clip_range atrain_nft_off_policy atrain_sde_sampler atrain_adv_type
    atrain_kl_type eval_freq eval_before_train eval_dataset_config eval_inference_mode
    eval_cfg_scale eval_num_inference_steps eval_sde_eta eval_image_height eval_image_width
    eval_micro_batch_size eval_wandb_num_upload_images eval_swanlab_num_upload_images
    num_generations per_device_train_batch_size gradient_accumulation_steps
    """
)

# Variables that are read somewhere in their code or scripts.
THEIR_VARIABLES = words(
    """
    NNODES NODE_IP_LIST NODE_RANK INDEX MASTER_ADDR CHIEF_IP MASTER_PORT NGPUS
    PYTORCH_CUDA_ALLOC_CONF OUTPUT_DIR DATASET_CONFIG EVAL_DATASET_CONFIG
    SFTAUX_DATASET_CONFIG MODEL_CONFIG CHECKPOINT WANDB_PROJECT WANDB_RUN_NAME WANDB_NAME
    RUN_NAME WANDB_MODE WANDB_API_KEY SWANLAB_MODE SWANLAB_PROJ_NAME SWANLAB_EXP_NAME
    SWANLAB_PROJECT LOG_DIR DEBUG_CPS_SDE DEBUG_UNIFIED_REWARD DEBUG_OCR_VLLM JONB_DEBUG_OCR
    DEBUG_SWANLAB_VIS DEBUG_EVAL_DEVICEISSUE VLLM_MAX_WORKERS VLLM_LOG_STATS
    CLIP_MODEL_NAME_OR_PATH SD3_5_MODEL_NAME_OR_PATH QWEN2_5_VL_MODEL_NAME_OR_PATH DATA_ROOT
    ATRAIN_CLAMP_LOGPROB ATRAIN_CLAMP_LOGPROB_DIFF ATRAIN_INCLUDE_LAST_DENOISE_STEP
    ATRAIN_ADV_CLIP_MAX ATRAIN_GRPOGUARD_PAPER_IMPL ATRAIN_GRPOGUARD_HIGHCLIP_RANGE
    ATRAIN_NFT_BETA ATRAIN_NFT_ADV_CLIP_RANGE GRPO_PHASE_LOG_LEVEL GRPO_PHASE_LOG_FILE
    GRPO_PHASE_PRINT_ENABLED OCR_SCORER_IMPL OCR_IGNORE_PUNCT OCR_CASE_SENSITIVE
    OCR_MIN_CONF OCR_NGRAM_MAX OCR_USE_CONFUSION_FOLD OCR_REWARD_MODE OCR_PORT
    REWARD_SERVICE_ADDR AESTHETIC_URL IMAGE_REWARD_URL OCR_URL PICKSCORE_URL DEQA_URL
    GEN_EVAL_URL HPS_URL EDITREWARD_URL UNIFIEDREWARD_SGLANG_URL AESTHETIC_WORKERS
    IMAGE_REWARD_WORKERS OCR_WORKERS PICKSCORE_WORKERS DEQA_WORKERS GEN_EVAL_WORKERS
    HPS_WORKERS EDITREWARD_WORKERS UNIFIEDREWARD_SGLANG_WORKERS UNIFIEDREWARD_URL
    UNIFIEDREWARD_WORKERS UNIFIEDREWARD_THINK_URL UNIFIEDREWARD_THINK_WORKERS
    UNIFIEDREWARD_MODEL OCR_VLLM_URL OCR_VLLM_MODEL OCR_VLLM_MAX_TOKENS OCR_VLLM_TEMPERATURE
    OCR_VLLM_WORKERS VLLM_PARALLEL_MODE VLLM_DATA_PARALLEL_SIZE VLLM_TENSOR_PARALLEL_SIZE
    VLLM_SERVER_DEV_MODE DEEPGEN_EXCLUSIVE_VLLM_SERVERS DEEPGEN_EXCLUSIVE_VLLM_TIMEOUT_S
    DEEPGEN_EXCLUSIVE_VLLM_CONNECT_TIMEOUT_S DEEPGEN_EXCLUSIVE_VLLM_RETRIES
    DEEPGEN_EXCLUSIVE_VLLM_RETRY_BACKOFF_S DEEPGEN_EXCLUSIVE_VLLM_SWITCH_ON_REWARD_CALLS
    UNIGENBENCH_API_URL UNIGENBENCH_MODEL_NAME UNIGENBENCH_WORKERS
    """
)

# Service and port.
PORTS = {
    **{"aesthetic": 18080, "image_reward": 18081, "ocr": 18082, "pickscore": 18083, "deqa": 18084},
    **{"gen_eval": 18085, "unifiedreward_sglang": 18086, "hps": 18087, "editreward": 18088},
    **{"unifiedreward_think": 18087, "UniGenBench": 8000, "sd3_service": 18099},
}
# Below `judges.NAME.parameters` is what an endpoint takes, whatever that is.
SENT_AS_THEY_ARE = {f"judges.JUDGE.parameters.{name}" for name in ("max_tokens", "temperature")}
DEEPSPEED = ("zero2.json", "zero3.json", "zero3_offload.json", "zero3_sd3.json")


class TestPage(PageTests):
    page, fewest = DEEPGEN_PAGE, 60
    awaited = frozenset(SENT_AS_THEY_ARE)

    def answers(self) -> list[Row]:
        parameters = [[cells[0], cells[2], cells[4]] for cells in rows(self.page, KEYS)]
        return [*parameters, *rows(self.page, NAMES)]


def parameters() -> dict[str, Row]:
    """The rows of the parameters, by their name."""
    found = [(name, cells) for cells in rows(DEEPGEN_PAGE, KEYS) for name in quoted(cells[0])]
    assert len(found) == len(dict(found)), "a parameter stands in two rows"
    return {name.removeprefix("--"): cells for name, cells in found}


def test_every_parameter_is_in_the_table() -> None:
    assert parameters().keys() == set(THEIRS) == DEEPGEN_KEYS.keys()


@pytest.mark.parametrize("name", THEIRS)
def test_a_parameter_has_its_keys_and_our_defaults(name: str) -> None:
    _, there, ours, here, _ = parameters()[name]
    keys = DEEPGEN_KEYS[name]
    assert there
    assert tuple(ours_in([ours])) == keys
    assert ours == "none" or keys
    expected = [f"`{default_of(key)}`" for key in keys]
    assert here == ", ".join(expected)


def same(there: str, here: str) -> bool:
    """Whether two defaults are one number or switch."""
    try:
        return float(there) == float(here)
    except ValueError:
        return there.lower() == here


@pytest.mark.parametrize("name", THEIRS)
def test_a_parameter_without_a_key_or_with_another_default_says_why(name: str) -> None:
    _, there, ours, here, why = parameters()[name]
    if ours == "none" or not same(there, here.strip("`")):
        assert why


@pytest.mark.parametrize(
    "name", sorted(DEEPGEN_KEYS.keys() - TRL_KEYS.keys() - JANUS_KEYS.keys() - QWEN_KEYS.keys())
)
def test_a_parameter_of_theirs_alone_leads_to_the_page(name: str) -> None:
    hint = key_hint(name, is_ours=False)
    assert DEEPGEN_PAGE in hint
    assert all(one in hint for one in DEEPGEN_KEYS[name])


def test_every_variable_is_in_the_table_as_the_code_has_it() -> None:
    expected = [
        [
            ", ".join(f"`{name}`" for name in (one.name, *one.instead)),
            ", ".join(f"`{key}`" for key in one.keys) or "none",
            one.difference,
        ]
        for one in VARIABLES
    ]
    assert rows(DEEPGEN_PAGE, NAMES) == expected
    named = {name for one in VARIABLES for name in (one.name, *one.instead)}
    assert named == set(THEIR_VARIABLES)


@pytest.mark.parametrize("service", PORTS)
def test_every_port_is_named(service: str) -> None:
    (found,) = [cells for cells in rows(DEEPGEN_PAGE, "1. Reward services") if service in cells[0]]
    assert str(PORTS[service]) in found[1]


@pytest.mark.parametrize("file", DEEPSPEED)
def test_every_deepspeed_file_has_a_counterpart(file: str) -> None:
    (found,) = [
        cells
        for cells in rows(DEEPGEN_PAGE, "5. Parameters, DeepSpeed, trackers")
        if quoted(cells[0]) == [file]
    ]
    assert quoted(found[1])


def test_every_step_of_the_guide_is_there() -> None:
    text = (Path(__file__).parents[2] / DEEPGEN_PAGE).read_text(encoding="utf-8")
    steps = re.findall(r"^### (\d)\. ", text, re.MULTILINE)
    assert steps == ["1", "2", "3", "4", "5", "6", "7"]


@pytest.mark.skipif(not GUIDE.is_file(), reason="DeepGen-RL's guide is not beside this checkout")
def test_the_page_knows_all_that_the_guide_names() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    flags = set(re.findall(r"`--([a-z_]+)`", guide))
    exported = set(re.findall(r"(?:export |Set `)([A-Z][A-Z0-9_]+)", guide))
    assert len(flags) > 15
    assert flags <= set(THEIRS)
    assert len(exported) > 15
    assert exported <= set(THEIR_VARIABLES)


def test_what_is_taken_of_the_variables_of_a_node_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where node 0 is and which node this one is; no more, and the rest is checked."""
    asked: list[tuple[str, int, int]] = []

    def helped(address: str, port: int, rank: int) -> int:
        asked.append((address, port, rank))
        return 0

    monkeypatch.setenv("ATELIER_NODES_TOKEN", "a-secret-of-all-nodes")
    monkeypatch.setattr(command_line, "run_node", helped)
    monkeypatch.setattr(command_line, "_run_flow", lambda *_: pytest.fail("a run of its own"))
    node = {"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29701", "NNODES": "2"}
    assert command_line.run_pipeline("tiny/base", variables={**node, "NGPUS": "3"}) == 0
    assert asked == [("10.0.0.1", 29701, 1)]
    assert command_line.run_pipeline("tiny/base", variables={**node, "NNODES": "1"}) == 2
    assert command_line.run_pipeline("tiny/base", variables={**node, "NGPUS": "none"}) == 2
    assert len(asked) == 1
