"""Whether a plan fits a GPU, and which settings make it fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from atelier.config.memory.estimate import Memory
from atelier.config.placement import judges_share
from atelier.config.plan import plan
from atelier.config.schema import RunConfig
from atelier.errors import AtelierError

GIBIBYTE = 2**30
MARGIN = 1.1  # CUDA's context, fragments of the allocator, kernels' workspaces
MOST_TOGETHER = 3

Settings = Mapping[str, Any]


def fitting(config: RunConfig, gibibytes: float) -> list[str]:
    """Lines that say whether a rank fits a GPU of so much memory, and else what to set.

    The settings that make it fit come first, those that cost least before the others; without one,
    the cheapest few together.
    """
    now = _memory(config, {})
    if now is None:
        return ["cannot say whether it fits: the model is not here, and its sizes are not known"]
    verdict = (
        f"the peak of {now.peak / GIBIBYTE:.1f} GiB, with 10 % for what is not counted "
        f"{now.peak * MARGIN / GIBIBYTE:.1f} GiB"
    )
    whole, gibibytes = gibibytes, gibibytes * (1 - judges_share(config))
    if gibibytes < whole:
        verdict += f", beside judges that take {whole - gibibytes:.1f} GiB of the same GPU"
    if _fits(now, gibibytes):
        return [f"fits {whole:g} GiB: {verdict}"]
    alone = [(one, found) for one in _ways(config) if (found := _memory(config, one))]
    lower = [(one, found) for one, found in alone if found.peak < now.peak]
    fits = _first_of_each([pair for pair in lower if _fits(pair[1], gibibytes)])
    helping = _first_of_each([pair for pair in reversed(lower) if not _fits(pair[1], gibibytes)])
    helping = [pair for pair in helping if not any(pair[0].keys() == one.keys() for one, _ in fits)]
    fits = fits or _together(config, [one for one, _ in lower], gibibytes)
    lines = [f"does not fit {whole:g} GiB: {verdict}"]
    lines += [_line("fits with", one, found) for one, found in fits]
    lines += [_line("lower with", one, found) for one, found in reversed(helping)]
    if not fits:
        lines.append(
            "nothing that the plan knows makes it fit, on so many GPUs and with this model"
        )
    return lines


def _first_of_each(found: Sequence[tuple[Settings, Memory]]) -> list[tuple[Settings, Memory]]:
    """Of several values of one key, the first."""
    firsts: dict[tuple[str, ...], tuple[Settings, Memory]] = {}
    for settings, memory in found:
        firsts.setdefault(tuple(settings), (settings, memory))
    return list(firsts.values())


def _ways(config: RunConfig) -> Iterator[Settings]:
    """Settings that need less memory, those that cost least first."""
    policy, size = config.policy, config.rollout.micro_batch_size
    if policy.family != "janus" and not policy.vae.slicing:
        yield {"policy.vae.slicing": True}
    if policy.trainable == "lora" and policy.base_dtype != policy.dtype:
        yield {"policy.base_dtype": policy.dtype}
    if policy.family == "qwen" and config.rollout.environment.dtype == "float32":
        edits = config.rollout.kind == "edit"  # whose autoencoder computes in the same
        yield {
            "rollout.environment.dtype": "bfloat16",
            **({"policy.vae.dtype": "bfloat16"} if edits else {}),
        }
    if policy.family == "sd3" and policy.text.dtype == "float32":
        yield {"policy.text.dtype": "bfloat16"}
    if config.launch.engine == "deepspeed" and config.launch.zero_stage == 3:
        yield {"launch.offload": True}
    # Costs a fourth to a third of the replay's time; the smaller batches, the GPU's use.
    for smaller in range(size - 1, 0, -1):
        if size % smaller == 0:
            yield {"rollout.micro_batch_size": smaller}
    if not policy.gradient_checkpointing:
        yield {"policy.gradient_checkpointing": True}
    # Last: it is another training, of less.
    if policy.trainable == "full":
        yield {"policy.trainable": "lora"}


def _together(
    config: RunConfig, lower: Sequence[Settings], gibibytes: float
) -> list[tuple[Settings, Memory]]:
    """The first few that fit together: of those that lower the peak alone before those that only
    help beside others, such as slicing once the replay is small."""
    ways = [*lower, *(one for one in _ways(config) if one not in lower)]
    for count in range(2, MOST_TOGETHER + 1):
        for some in combinations(ways, count):
            settings = {key: value for one in some for key, value in one.items()}
            if len(settings) < count:  # two sizes of a micro-batch
                continue
            found = _memory(config, settings)
            if found is not None and _fits(found, gibibytes):
                return [(settings, found)]
    return []


def _memory(config: RunConfig, settings: Settings) -> Memory | None:
    """What a rank needs; None where that cannot work or is not known."""
    value = config.model_dump(mode="json")
    for key, setting in settings.items():
        *path, name = key.split(".")
        section = value
        for part in path:
            section = section[part]
        section[name] = setting
    try:
        return plan(RunConfig.model_validate_json(json.dumps(value))).memory
    except (AtelierError, ValidationError):
        return None


def _fits(memory: Memory, gibibytes: float) -> bool:
    return memory.peak * MARGIN <= gibibytes * GIBIBYTE


def _line(verdict: str, settings: Settings, memory: Memory) -> str:
    """As it is typed."""
    typed = " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())
    other = " (an adapter is trained, and not the whole)" if "policy.trainable" in settings else ""
    return f"  {verdict:<10}  {typed}: {memory.peak / GIBIBYTE:.1f} GiB{other}"
