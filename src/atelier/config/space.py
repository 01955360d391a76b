"""How much disk a run takes at most, before it starts.

Checkpoints are 4 B x trained parameters, four times: weights, moving average, two moments of AdamW;
once more where a slow copy of the weights samples; images in flight where they are stored.
One more than `train.keep_checkpoints` is there while the oldest is still being removed. A merged
export is a whole pipeline. Images and logs are small beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.memory import stored_latents, trained_actions
from atelier.config.model_facts import ModelFacts
from atelier.config.paths import runs_root
from atelier.config.schema import RunConfig
from atelier.disk import amount, free_bytes

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def checkpoint_bytes(config: RunConfig, facts: ModelFacts) -> int:
    """One checkpoint."""
    lora = config.policy.trainable == "lora"
    trained = facts.adapter_parameters if lora else facts.parameters
    copies = 3 + config.train.ema.enabled + config.algorithm.keeps_behaviour
    return 4 * trained * copies + _in_flight(config, facts)


def _in_flight(config: RunConfig, facts: ModelFacts) -> int:
    """Latents of a step's images, stored with a checkpoint; their prompts are encoded again."""
    train = config.train
    if not train.one_step_off or train.in_flight != "store":
        return 0
    images = train.prompts_per_step * config.rollout.group_size
    return 4 * images * stored_latents(config, facts, trained_actions(config))


def run_bytes(config: RunConfig, facts: ModelFacts) -> int:
    """All checkpoints that are there at once, and the exports."""
    sizes = {
        "merged": facts.parameters * _DTYPE_BYTES[config.export.dtype] + facts.frozen_bytes,
        "adapter": 4 * facts.adapter_parameters,
    }
    exports = sum(sizes[kind] for kind in config.export.formats)
    checkpoints = config.train.keep_checkpoints + 1
    return checkpoints * checkpoint_bytes(config, facts) + exports


def space_warnings(config: RunConfig, facts: ModelFacts) -> Iterator[tuple[str, str]]:
    """Field and text of what will not fit where runs are kept."""
    needed, free = run_bytes(config, facts), free_bytes(runs_root())
    if needed > free:
        yield (
            "train.keep_checkpoints",
            f"{config.train.keep_checkpoints + 1} checkpoints of "
            f"{amount(checkpoint_bytes(config, facts))} and the export need {amount(needed)}, and "
            f"{amount(free)} are free where runs are kept; `atelier prune` shows what can go",
        )
