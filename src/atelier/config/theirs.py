"""Names of the systems whose algorithms are here, and what they are called here.

People bring them along. A page of docs/ has every key and the differences; a hint leads to it.
"""

from __future__ import annotations

from atelier.config.theirs_deepgen import DEEPGEN_KEYS, DEEPGEN_PAGE

MM_GRPO_PAGE = "docs/coming-from-mm-grpo.md"
JANUS_PAGE = "docs/coming-from-focusdiff-and-janus-pro-r1.md"
VARIANTS_PAGE = "docs/algorithms/grpo-variants.md"
QWEN_PAGE = "docs/coming-from-qwen-vision-grpo.md"
COMPLETIONS_PAGE = "docs/algorithms/grpo-on-completions.md"

# MM-GRPO: sections that are not here, and of sections that are, some keys that are not.
_MM_GRPO_SECTIONS = (
    "actor_rollout_ref",
    "reward_model",
    "custom_reward_function",
    "trainer",
    "ray_kwargs",
    "global_profiler",
    "transfer_queue",
)
_MM_GRPO_KEYS = (
    "algorithm.adv_estimator",
    "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.global_std",
    "algorithm.rollout_correction",
    "data.train_files",
    "data.val_files",
    "data.train_batch_size",
    "data.val_batch_size",
    "data.train_max_samples",
    "data.val_max_samples",
    "data.max_prompt_length",
    "data.data_source",
    "data.reward_fn",
)

# FocusDiff and Janus-Pro-R1: flat keys of their recipes, and ours; () where nothing is to be set.
JANUS_KEYS: dict[str, tuple[str, ...]] = {
    "model_name_or_path": ("policy.path", "policy.layout"),
    "model_path": ("policy.path", "policy.layout"),
    "model_revision": ("policy.revision",),
    "pretrain_path": ("policy.path",),
    "ref_pretrain_path": (),
    "torch_dtype": ("policy.dtype",),
    "bf16": ("policy.dtype",),
    "dataset_name": (),
    "dataset_configs": (),
    "datap": ("data.path", "data.source"),
    "paired_data_path": ("data.path", "data.source"),
    "not_paired_data_path": ("data.unpaired_path",),
    "image_path": (),
    "num_generations": ("rollout.group_size",),
    "generate_with_cfg": ("rollout.guidance_scale",),
    "guidance_scale": ("rollout.guidance_scale",),
    "temperature": ("rollout.tokens.temperature",),
    "max_prompt_length": (),
    "max_completion_length": (),
    "use_vllm": (),
    "vllm_device": (),
    "vllm_gpu_memory_utilization": (),
    "reverse": (),
    "addselft2i": (),
    "beta": ("algorithm.beta",),
    "set_epsilon": ("algorithm.clip_range",),
    "epsilon": ("algorithm.clip_range",),
    "sync_ref_model": (),
    "learning_rate": ("train.learning_rate",),
    "use_self_lr_scheduler": ("train.schedule.kind",),
    "warm_up_steps": ("train.schedule.warm_up_updates",),
    "convert_steps": ("train.schedule.convert_updates",),
    "convert_lr": ("train.schedule.convert_rate",),
    "min_lr": ("train.schedule.last_rate",),
    "lr_scheduler_type": (),
    "warmup_ratio": (),
    "per_device_train_batch_size": ("train.prompts_per_step",),
    "gradient_accumulation_steps": ("train.prompts_per_step",),
    "num_train_epochs": ("train.steps",),
    "max_steps": ("train.steps",),
    "seed": ("train.seed",),
    "internvl_tp": ("judges.internvl.model", "judges.internvl.placement"),
    "following": ("rewards.edit_yes_no.following_weight",),
    "preserving": ("rewards.edit_yes_no.preserving_weight",),
    "weight": (),
    "use_clip_score": (),
    "output_dir": (),
    "overwrite_output_dir": (),
    "save_strategy": (),
    "save_steps": ("train.checkpoint_every",),
    "save_only_model": (),
    "report_to": ("tracking.mlflow_uri",),
    "logging_dir": (),
    "logging_steps": (),
    "logging_strategy": (),
    "log_level": (),
    "push_to_hub": (),
    "do_eval": (),
    "eval_strategy": (),
    "eval_steps": ("train.evaluate_every",),
    "per_device_eval_batch_size": ("evaluation.micro_batch_size",),
    "num_processes": ("launch.processes",),
    "num_machines": ("launch.nodes",),
    "distributed_type": ("launch.engine",),
    "deepspeed_config": ("launch.zero_stage",),
    "fsdp_config": (),
    "mixed_precision": ("policy.dtype",),
}

# TRL: keys of its GRPO that say which variant it is, or what is written, and ours.
TRL_KEYS: dict[str, tuple[str, ...]] = {
    "loss_type": ("algorithm.loss_mean", "algorithm.surrogate"),
    "importance_sampling_level": ("algorithm.ratio_level",),
    "epsilon_high": ("algorithm.clip_range_high",),
    "delta": ("algorithm.clip_delta",),
    "scale_rewards": ("algorithm.advantage_std",),
    "multi_objective_aggregation": ("algorithm.advantage_from",),
    "mask_truncated_completions": ("algorithm.mask_truncated",),
    "max_completion_length": ("rollout.completion.max_tokens",),
    "use_peft": ("policy.trainable",),
    "lora_r": ("policy.lora.rank",),
    "lora_alpha": ("policy.lora.alpha",),
    "lora_target_modules": ("policy.lora.target_modules",),
    "use_bias_correction_kl": ("algorithm.kl_correction",),
    "sapo_temperature_pos": ("algorithm.sapo.temperature_positive",),
    "sapo_temperature_neg": ("algorithm.sapo.temperature_negative",),
    "num_iterations": ("train.inner_epochs",),
    "steps_per_generation": ("train.updates_per_step",),
    "generation_batch_size": ("train.prompts_per_step",),
}

# The Qwen vision GRPO guide: keys of TRL, accelerate and DeepSpeed that its launch scripts set, and
# ours; () where nothing is to be set.
QWEN_KEYS: dict[str, tuple[str, ...]] = {
    **{
        name: TRL_KEYS[name]
        for name in (
            *("loss_type", "epsilon_high", "scale_rewards", "mask_truncated_completions"),
            *("max_completion_length", "use_peft", "lora_r", "lora_alpha", "lora_target_modules"),
            *("num_iterations", "steps_per_generation", "generation_batch_size"),
        )
    },
    "model_name_or_path": ("policy.path",),
    "torch_dtype": ("policy.dtype",),
    "bf16": ("policy.dtype",),
    "mixed_precision": ("policy.dtype",),
    "attn_implementation": (),
    "lora_dropout": (),
    "gradient_checkpointing": ("policy.gradient_checkpointing",),
    "num_generations": ("rollout.group_size",),
    "per_device_train_batch_size": ("rollout.micro_batch_size",),
    "gradient_accumulation_steps": ("train.prompts_per_step",),
    "max_steps": ("train.steps",),
    "max_prompt_length": (),
    "temperature": ("rollout.completion.temperature",),
    "top_p": ("rollout.completion.top_p",),
    "use_vllm": ("rollout.completion.backend",),
    "vllm_mode": ("rollout.sampler.server",),
    "vllm_gpu_memory_utilization": ("rollout.sampler.vllm.gpu_memory_share",),
    "vllm_importance_sampling_correction": ("rollout.old_log_prob",),
    "vllm_importance_sampling_cap": ("rollout.old_log_prob",),
    "epsilon": ("algorithm.clip_range",),
    "beta": ("algorithm.beta",),
    "reward_weights": ("rewards.mmmg.weight",),
    "learning_rate": ("train.learning_rate",),
    "lr_scheduler_type": ("train.schedule.kind",),
    "warmup_steps": (),
    "seed": ("train.seed",),
    "save_steps": ("train.checkpoint_every",),
    "save_total_limit": ("train.keep_checkpoints",),
    "save_only_model": (),
    "resume_from_checkpoint": (),
    "logging_steps": (),
    "log_completions": ("tracking.samples_every",),
    "report_to": ("tracking.mlflow_uri",),
    "output_dir": (),
    "num_processes": ("launch.processes",),
    "num_machines": ("launch.nodes",),
    "distributed_type": ("launch.engine",),
    "zero_stage": ("launch.zero_stage",),
    "offload_optimizer_device": ("launch.offload",),
    "offload_param_device": ("launch.offload",),
    "zero3_init_flag": (),
    "zero3_save_16bit_model": (),
}

# Published variants of GRPO, by what they set here.
_VARIANTS = {
    "dr_grpo": "algorithm.loss_mean: constant and algorithm.advantage_std: none",
    "bnpo": "algorithm.loss_mean: micro_batch",
    "dapo": "algorithm.loss_mean: token and algorithm.clip_range_high: 0.28",
    "gspo": "algorithm.ratio_level: sequence",
    "luspo": "algorithm.ratio_level: sequence and algorithm.loss_mean: sum",
    "cispo": "algorithm.surrogate: cispo",
    "sapo": "algorithm.surrogate: sapo",
    "vespo": "algorithm.surrogate: vespo",
}

# Values of keys that are here.
_VALUES = {
    **{
        ("algorithm.name", name): (f"grpo with {own}", VARIANTS_PAGE)
        for name, own in _VARIANTS.items()
    },
    ("algorithm.loss_mean", "grpo"): ("sequence", VARIANTS_PAGE),
    ("algorithm.loss_mean", "bnpo"): ("micro_batch", VARIANTS_PAGE),
    ("algorithm.loss_mean", "dapo"): ("token", VARIANTS_PAGE),
    ("algorithm.loss_mean", "dr_grpo"): ("constant", VARIANTS_PAGE),
    ("algorithm.loss_mean", "luspo"): ("sum", VARIANTS_PAGE),
    ("algorithm.name", "flow_grpo"): ("grpo", MM_GRPO_PAGE),
    ("algorithm.name", "flow_grpo_fast"): (
        "grpo with rollout.window.strategy: fast",
        MM_GRPO_PAGE,
    ),
    ("algorithm.name", "mix_grpo"): (
        "grpo with rollout.window.strategy: progressive",
        MM_GRPO_PAGE,
    ),
    ("algorithm.name", "grpo_guard"): ("grpo with rollout.log_prob: ratio_norm", MM_GRPO_PAGE),
    ("algorithm.name", "pair_grpo"): ("grpo with algorithm.advantage_over: pair", JANUS_PAGE),
    **{
        ("policy.family", name): ("qwen", COMPLETIONS_PAGE)
        for name in ("qwen_image", "qwen-image", "qwen_image_edit", "qwen2_5_vl")
    },
    ("rollout.dynamics", "sde"): ("flow_sde", MM_GRPO_PAGE),
    ("rollout.kind", "t2i"): ("draw or introspect", JANUS_PAGE),
    ("data.source", "ocr"): ("ocr_text", MM_GRPO_PAGE),
    ("data.source", "prompt"): ("plain", MM_GRPO_PAGE),
}


# Whose keys are asked first where several have one.
_TABLES = (
    (TRL_KEYS, VARIANTS_PAGE, "TRL's"),
    (JANUS_KEYS, JANUS_PAGE, "FocusDiff's or Janus-Pro-R1's"),
    (QWEN_KEYS, QWEN_PAGE, "the Qwen vision GRPO guide's"),
    (DEEPGEN_KEYS, DEEPGEN_PAGE, "DeepGen-RL's"),
)


def key_hint(key: str, is_ours: bool) -> str:
    """`; ...` about an unknown dotted key that is theirs, and nothing about any other.

    Args:
        is_ours: whether its last word names a key of ours, in another section. Then a section
            before it says more of what was meant.
    """
    if key.partition(".")[0] in _MM_GRPO_SECTIONS or key in _MM_GRPO_KEYS:
        return f"; MM-GRPO's: {MM_GRPO_PAGE} says what it is here"
    section, _, leaf = key.rpartition(".")
    if "." in section or (section and is_ours):
        return ""
    for keys, page, whose in _TABLES:
        if leaf in keys:
            ours = " and ".join(keys[leaf])
            if ours:
                return f"; did you mean {ours}? ({page})"
            return f"; {whose}, which has no counterpart: {page} says why"
    return ""


def value_hint(key: str, value: object) -> str:
    """`; did you mean ...?` where a value is theirs, or named after an algorithm."""
    if not isinstance(value, str) or (key, value) not in _VALUES:
        return ""
    ours, page = _VALUES[key, value]
    return f"; did you mean {ours}? ({page})"
