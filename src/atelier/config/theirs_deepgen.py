"""DeepGen-RL's command line, and what its parameters are here (docs/coming-from-deepgen-rl.md)."""

from __future__ import annotations

DEEPGEN_PAGE = "docs/coming-from-deepgen-rl.md"

# Keys that the page and the tables already name and the schema does not have yet. A test fails for
# each that has come: take it away here then, or rename it everywhere where it came by another name.
AWAITED_KEYS: frozenset[str] = frozenset()

# The same of recipes.
AWAITED_RECIPES: frozenset[str] = frozenset()

# Parameters without their dashes, and ours; () where nothing is to be set.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "model_config": (),
    "checkpoint": ("policy.path",),
    "output_dir": (),
    "num_train_epochs": ("train.steps",),
    "max_steps": ("train.steps",),
    "learning_rate": ("train.learning_rate",),
    "lr_scheduler_type": ("train.schedule.kind",),
    "warmup_steps": ("train.schedule.warm_up_updates",),
    "logging_steps": (),
    "save_steps": ("train.checkpoint_every",),
    "save_total_limit": ("train.keep_checkpoints",),
    "bf16": ("policy.dtype",),
    "dataloader_num_workers": (),
    "rollout_n": ("rollout.group_size",),
    "rollout_micro_batch_size": ("rollout.micro_batch_size",),
    "rollout_global_batch_size": ("train.prompts_per_step",),
    "atrain_micro_batch_size": ("rollout.micro_batch_size",),
    "atrain_global_batch_size": ("train.updates_per_step",),
    "log_prob_micro_batch_size": (),
    "atrain_num_actor_update_steps": ("train.updates_per_step",),
    "beta": ("algorithm.beta",),
    "cfg_scale": ("rollout.guidance_scale",),
    "num_inference_steps": ("rollout.num_inference_steps",),
    "image_height": ("policy.resolution",),
    "image_width": ("policy.resolution",),
    "log_images_interval": ("tracking.samples_every",),
    "reward_funcs": (),
    "prompts_file": ("data.path",),
    "dataset_config": ("data.path", "data.source"),
    "report_to": ("tracking.wandb.enabled", "tracking.swanlab.enabled"),
    "run_name": ("tracking.run_name",),
    "log_component_grad_norm": (),
    "log_component_grad_norm_every": (),
    "log_tflops": (),
    "log_tflops_every": (),
    "log_tflops_warmup_steps": (),
    "deepspeed": ("launch.engine", "launch.zero_stage"),
    "local_rank": (),
    "gradient_checkpointing": ("policy.gradient_checkpointing",),
    "max_grad_norm": ("train.max_grad_norm",),
    "sftaux_dataset_config": ("data.sft.files", "data.sft.source"),
    "sftaux_coef": ("train.sft.coefficient", "train.sft.mix"),
    "sftaux_every_n_steps": ("train.sft.every",),
    "sftaux_micro_batch_size": ("train.sft.pictures_per_update",),
    "sftaux_num_workers": (),
    "sftaux_disable_on_error": (),
    "init_same_noise": ("rollout.shared_start",),
    "timestep_fraction": ("rollout.window.strategy", "rollout.window.fraction"),
    "ema_diffusion": ("train.ema.enabled", "train.ema.decay"),
    "clip_range": ("algorithm.clip_range",),
    "sde_eta": ("rollout.noise_level",),
    "atrain_algorithm": ("algorithm.name", "rollout.log_prob"),
    "atrain_nft_beta": ("algorithm.nft.strength",),
    "atrain_nft_adv_clip_range": ("algorithm.advantage_clip",),
    "atrain_nft_off_policy": ("algorithm.nft.behaviour",),
    "atrain_sde_sampler": ("rollout.dynamics",),
    "atrain_adv_type": (
        "algorithm.advantage_from",
        "algorithm.advantage_std",
        "algorithm.advantage_over",
    ),
    "atrain_kl_type": ("algorithm.kl",),
    "eval_freq": ("train.evaluate_every",),
    "eval_before_train": (),
    "eval_dataset_config": ("data.heldout_path", "data.heldout_source", "evaluation.suite"),
    "eval_inference_mode": (),
    "eval_cfg_scale": ("evaluation.guidance_scale",),
    "eval_num_inference_steps": ("evaluation.num_inference_steps",),
    "eval_sde_eta": (),
    "eval_image_height": ("policy.resolution",),
    "eval_image_width": ("policy.resolution",),
    "eval_micro_batch_size": ("evaluation.micro_batch_size",),
    "eval_wandb_num_upload_images": ("tracking.images",),
    "eval_swanlab_num_upload_images": ("tracking.images",),
    "num_generations": ("rollout.group_size",),
    "per_device_train_batch_size": ("rollout.micro_batch_size",),
    "gradient_accumulation_steps": ("train.updates_per_step",),
}

# Of those, what a hint may say: keys that exist.
DEEPGEN_KEYS: dict[str, tuple[str, ...]] = {
    name: tuple(key for key in keys if key not in AWAITED_KEYS) for name, keys in PARAMETERS.items()
}
