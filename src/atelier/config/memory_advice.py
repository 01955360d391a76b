"""Whether a plan fits a GPU, and which settings make it fit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from atelier.config.memory.amounts import memory_amount
from atelier.config.memory.estimate import Memory
from atelier.config.memory.parts import made_together
from atelier.config.placement import painting_gpus, ranks_with_gpus, servers_share
from atelier.config.plan import plan
from atelier.config.schema import RunConfig
from atelier.errors import AtelierError

GIBIBYTE = 2**30
MARGIN = 1.1  # CUDA's context, fragments of the allocator, kernels' workspaces
MOST_TOGETHER = 3
_PAINTING = "rollout.environment.gpus"

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Room:
    """GiB that a rank's GPU and one that only paints have for it."""

    rank: float
    painter: float

    def fits(self, memory: Memory) -> bool:
        return (
            memory.peak * MARGIN <= self.rank * GIBIBYTE
            and memory.painter_peak * MARGIN <= self.painter * GIBIBYTE
        )


def fitting(config: RunConfig, gibibytes: float) -> list[str]:
    """Lines that say whether a rank fits a GPU of so much memory, and those it paints with fit
    another, and else what to set.

    The settings that make it fit come first, those that cost least before the others; without one,
    the cheapest few together.
    """
    now = _memory(config, {})
    if now is None:
        return ["cannot say whether it fits: the model is not here, and its sizes are not known"]
    room = Room(gibibytes * (1 - servers_share(config)), gibibytes)
    verdict = _verdict(now, room)
    if room.fits(now):
        return [f"fits {gibibytes:g} GiB: {verdict}"]
    alone = [(one, found) for one in _ways(config) if (found := _memory(config, one))]
    lower = [(one, found) for one, found in alone if _is_lower(found, now, room)]
    fits = _first_of_each([pair for pair in lower if room.fits(pair[1])])
    helping = _first_of_each([pair for pair in reversed(lower) if not room.fits(pair[1])])
    helping = [pair for pair in helping if not any(pair[0].keys() == one.keys() for one, _ in fits)]
    fits = fits or _together(config, [one for one, _ in lower], room)
    lines = [f"does not fit {gibibytes:g} GiB: {verdict}"]
    lines += [_line("fits with", one, found, config) for one, found in fits]
    lines += [_line("lower with", one, found, config) for one, found in reversed(helping)]
    if not fits:
        lines.append(
            "nothing that the plan knows makes it fit, on so many GPUs and with this model"
        )
    return lines


def _verdict(memory: Memory, room: Room) -> str:
    text = (
        f"the peak of {memory_amount(memory.peak)}, with 10 % for what is not counted "
        f"{memory_amount(memory.peak * MARGIN)}"
    )
    if room.rank < room.painter:
        text += f", beside servers that take {room.painter - room.rank:.1f} GiB of the same GPU"
    if memory.painter:
        text += f"; of a GPU that paints {memory_amount(memory.painter_peak * MARGIN)}"
    return text


def _is_lower(found: Memory, now: Memory, room: Room) -> bool:
    """Whether a GPU that has no room needs less: a rank's, or one that paints."""
    is_short = not Room(room.rank, math.inf).fits(now)
    paints_short = not Room(math.inf, room.painter).fits(now)
    return (is_short and found.peak < now.peak) or (
        paints_short and found.painter_peak < now.painter_peak
    )


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
    if policy.denoises and policy.text.dtype == "float32":
        yield {"policy.text.dtype": "bfloat16"}
    if config.launch.engine == "deepspeed" and config.launch.zero_stage == 3:
        yield {"launch.offload": True}
    if policy.family == "qwen" and config.rollout.kind != "edit":  # edits are painted one by one
        painted = config.rollout.environment.micro_batch_size or size
        for smaller in _smaller(painted):
            yield {"rollout.environment.micro_batch_size": smaller}
    if heldout := made_together(config).get("evaluation"):
        for smaller in _smaller(heldout.images):
            yield {"evaluation.micro_batch_size": smaller}
    # Costs a fourth to a third of the replay's time; the smaller batches, the GPU's use.
    for smaller in _smaller(size):
        yield {"rollout.micro_batch_size": smaller}
    if not policy.gradient_checkpointing:
        yield {"policy.gradient_checkpointing": True}
    # Of all ranks, so that each has another GPU to itself.
    if policy.family == "qwen" and ranks_with_gpus(config) > painting_gpus(config):
        yield {_PAINTING: config.launch.processes}
    # Last: it is another training, of less.
    if policy.trainable != "lora":
        yield {"policy.trainable": "lora"}


def _smaller(size: int) -> Iterator[int]:
    """Its divisors below it, the largest first."""
    return (one for one in range(size - 1, 0, -1) if size % one == 0)


def _together(
    config: RunConfig, lower: Sequence[Settings], room: Room
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
            if found is not None and room.fits(found):
                return [(settings, found)]
    return []


def _memory(config: RunConfig, settings: Settings) -> Memory | None:
    """What a rank needs, one that needs most; None where that cannot work or is not known."""
    value = config.model_dump(mode="json")
    for key, setting in settings.items():
        *path, name = key.split(".")
        section = value
        for part in path:
            section = section[part]
        section[name] = setting
    try:
        return plan(RunConfig.model_validate_json(json.dumps(value))).largest_memory
    except (AtelierError, ValidationError):
        return None


def _line(verdict: str, settings: Settings, memory: Memory, config: RunConfig) -> str:
    """As it is typed."""
    typed = " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())
    other = " (an adapter is trained, and not the whole)" if "policy.trainable" in settings else ""
    painter = memory_amount(memory.painter_peak)
    if _PAINTING in settings:
        other += f" ({settings[_PAINTING] - painting_gpus(config)} GPUs more, {painter} each)"
    elif memory.painter:
        other = f", of a GPU that paints {painter}{other}"
    return f"  {verdict:<10}  {typed}: {memory_amount(memory.peak)}{other}"
