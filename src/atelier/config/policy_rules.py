"""Which settings of a policy, and of the engine that trains it, exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.schema import RunConfig
from atelier.config.sections.deepgen import BasesConfig
from atelier.config.sections.policy_parts import holds_weights_alone


def policy_rejections(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Field and reason of every setting of the policy that cannot work with the others."""
    policy = config.policy
    yield from _deepgen_rejections(config)
    if policy.base_dtype != "float32":
        if policy.trainable != "lora":
            yield (
                "policy.base_dtype",
                f"{policy.base_dtype} holds what is frozen, and with policy.trainable: "
                f"{policy.trainable} everything is trained, in float32; use lora, or float32 here",
            )
        elif policy.dtype != policy.base_dtype:
            yield (
                "policy.base_dtype",
                f"{policy.base_dtype}, but policy.dtype computes in {policy.dtype}; use the same",
            )
    launch = config.launch
    if launch.offload and (launch.engine, launch.zero_stage) != ("deepspeed", 3):
        yield "launch.offload", "needs launch.engine: deepspeed with launch.zero_stage: 3"
    if launch.zero_tuning == "sd3" and launch.offload:
        yield "launch.zero_tuning", "sd3 is without launch.offload; use general"
    shards_weights = (launch.engine, launch.zero_stage) == ("deepspeed", 3)
    if policy.denoises and policy.transformer == "fast" and shards_weights:
        yield (
            "policy.transformer",
            "fast multiplies with weights of several layers at once, and with launch.zero_stage 3 "
            "a rank has a part of each; use stock here, or launch.zero_stage: 2",
        )
    if policy.lora.folded and policy.dtype == "bfloat16":
        yield (
            "policy.lora.folded",
            "a sum of weight and adapter rounded to bfloat16 loses most of a young adapter; use "
            "float16 (policy.dtype and policy.base_dtype), or false here",
        )
    if policy.dtype == "float16" and launch.engine == "deepspeed":
        yield (
            "policy.dtype",
            "float16 needs its gradients scaled, which only launch.engine: ddp does; use bfloat16",
        )


def policy_warnings(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Field and what is likely to be a mistake."""
    policy, rollout = config.policy, config.rollout
    if policy.family != "deepgen" or policy.connector.padding != "maskless":
        return
    if rollout.group_size % rollout.micro_batch_size == 0 and rollout.guidance_scale == 1:
        yield (
            "policy.connector.padding",
            f"maskless, and a micro-batch of {rollout.micro_batch_size} "
            "(rollout.micro_batch_size) has one prompt: nothing is padded in training, and in "
            "evaluation prompts are; a multiple of rollout.group_size pads in both",
        )


def _deepgen_rejections(config: RunConfig) -> Iterator[tuple[str, str]]:
    """What is trained, what it was trained from, and how prompts are encoded."""
    policy = config.policy
    is_part = policy.trainable in ("dit", "dit_connector")
    if is_part and policy.family != "deepgen":
        yield (
            "policy.trainable",
            f"{policy.trainable} is for policy.family deepgen; use full or lora",
        )
    if policy.family != "deepgen":
        if policy.bases != BasesConfig():
            yield "policy.bases", "is for policy.family deepgen"
        return
    is_file = holds_weights_alone(policy.path)
    for key in ("vlm", "pipeline"):
        if is_file and getattr(policy.bases, key) is None:
            yield (
                f"policy.bases.{key}",
                f"{policy.path} holds weights alone; name what it was trained from",
            )
    if not is_file and policy.bases != BasesConfig():
        yield (
            "policy.bases",
            f"is for a file of weights, and policy.path {policy.path} is a model's directory",
        )
    if policy.connector.padding == "maskless" and policy.text.disk_gigabytes:
        yield (
            "policy.text.disk_gigabytes",
            "with policy.connector.padding maskless an embedding depends on its batch and cannot "
            "be kept; use 0",
        )
    if policy.connector.padding == "maskless" and config.rollout.kind == "edit":
        yield (
            "policy.connector.padding",
            "maskless is for prompts without images; use masked with rollout.kind edit",
        )
