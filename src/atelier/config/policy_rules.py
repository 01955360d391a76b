"""Which settings of a policy, and of the engine that trains it, exclude each other."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.schema import RunConfig


def policy_rejections(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Field and reason of every setting of the policy that cannot work with the others."""
    policy = config.policy
    if policy.base_dtype != "float32":
        if policy.trainable == "full":
            yield (
                "policy.base_dtype",
                f"{policy.base_dtype} holds what is frozen, and with policy.trainable: full "
                "everything is trained, in float32; use lora, or float32 here",
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
    if policy.dtype == "float16" and launch.engine == "deepspeed":
        yield (
            "policy.dtype",
            "float16 needs its gradients scaled, which only launch.engine: ddp does; use bfloat16",
        )
