"""A step's batch as other trainers have it: samples of a device and accumulation.

There the group size divides what the devices hold, and prompts a step follow from it. Here a step
has a number of prompts, whatever it is computed on. Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

import math

from atelier.config.divisors import nearest_divisors, nearest_multiples
from atelier.config.schema import RunConfig
from atelier.errors import PlanError


def prompts_per_step(
    per_device: int, accumulation: int, processes: int, group_size: int, updates: int = 1
) -> int:
    """How many prompts make so many samples: per_device x accumulation x processes x updates over
    group_size.

    Args:
        per_device: samples that a device holds at once.
        accumulation: such batches of a device that make an update.
        updates: of the optimizer in a step.

    Raises:
        PlanError: that is no whole number of groups.
    """
    once = per_device * processes * updates
    samples = once * accumulation
    if samples % group_size == 0:
        return samples // group_size
    each = group_size // math.gcd(once, group_size)
    works = [f"accumulation {nearest_multiples(each, accumulation)}"]
    sizes = nearest_divisors(samples, group_size).removeprefix("1 or ")
    if sizes != "1":
        works.append(f"rollout.group_size {sizes}")
    raise PlanError(
        f"{per_device} samples a device x accumulation {accumulation} x {processes} process(es) "
        f"(launch.processes x launch.nodes) x {updates} update(s) (train.updates_per_step) are "
        f"{samples} samples a step, no whole number of groups of {group_size} "
        f"(rollout.group_size); what works: {', or '.join(works)}"
    )


def device_batch_overrides(config: RunConfig, per_device: int, accumulation: int) -> list[str]:
    """The settings of a run with such batches, as `--set` takes them.

    Raises:
        PlanError: they make no whole number of groups.
    """
    prompts = prompts_per_step(
        per_device,
        accumulation,
        config.launch.ranks,
        config.rollout.group_size,
        config.train.updates_per_step,
    )
    return [f"rollout.micro_batch_size={per_device}", f"train.prompts_per_step={prompts}"]
