"""How much disk a run takes at most, before it starts.

Checkpoints are 4 B x trained parameters, four times: weights, moving average, two moments of AdamW;
once more where a slow copy of the weights samples; images in flight where they are stored.
One more than `train.keep_checkpoints` is there while the oldest is still being removed. A merged
export is a whole pipeline or model, or what a text encoder is without the rest of its pipeline.
Images and logs are small beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.facts.janus import JanusFacts
from atelier.config.facts.qwen import QwenFacts
from atelier.config.facts.read import Facts
from atelier.config.memory.janus import packed_bytes
from atelier.config.memory.parts import tensors_of_a_checkpoint
from atelier.config.memory.qwen import packed_completion_bytes
from atelier.config.memory.sd3 import stored_latents
from atelier.config.paths import runs_root
from atelier.config.schema import RunConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES
from atelier.config.work import work
from atelier.disk import amount, free_bytes


def checkpoint_bytes(config: RunConfig, facts: Facts) -> int:
    """One checkpoint."""
    return tensors_of_a_checkpoint(config, facts.trained(config)) + _in_flight(config, facts)


def _in_flight(config: RunConfig, facts: Facts) -> int:
    """Latents or tokens of a step's images, stored with a checkpoint; prompts are encoded again."""
    train = config.train
    if not train.one_step_off or train.in_flight != "store":
        return 0
    images = train.prompts_per_step * config.rollout.group_size
    actions = work(config, facts).actions
    if isinstance(facts, JanusFacts):
        return images * packed_bytes(config, facts, actions)
    if isinstance(facts, QwenFacts):
        return images * packed_completion_bytes(actions)
    return 4 * images * stored_latents(config, facts, actions)


def _merged_bytes(config: RunConfig, facts: Facts) -> int:
    whole = facts.merged_bytes(DTYPE_BYTES[config.export.dtype])
    if isinstance(facts, QwenFacts) and not config.export.whole_pipeline:
        return whole - facts.painter.stored_bytes
    return whole


def run_bytes(config: RunConfig, facts: Facts) -> int:
    """All checkpoints that are there at once, and the exports."""
    sizes = {
        "merged": _merged_bytes(config, facts),
        "adapter": 4 * facts.adapter_parameters,
    }
    exports = sum(sizes[kind] for kind in config.export.formats)
    checkpoints = config.train.keep_checkpoints + 1
    return checkpoints * checkpoint_bytes(config, facts) + exports


def space_warnings(config: RunConfig, facts: Facts) -> Iterator[tuple[str, str]]:
    """Field and text of what will not fit where runs are kept."""
    needed, free = run_bytes(config, facts), free_bytes(runs_root())
    if needed > free:
        yield (
            "train.keep_checkpoints",
            f"{config.train.keep_checkpoints + 1} checkpoints of "
            f"{amount(checkpoint_bytes(config, facts))} and the export need {amount(needed)}, and "
            f"{amount(free)} are free where runs are kept; `atelier prune` shows what can go",
        )
