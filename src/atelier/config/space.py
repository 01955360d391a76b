"""How much disk a run takes at most, before it starts.

Checkpoints are 4 B x trained parameters, four times: weights, moving average, two moments of AdamW;
once more where a slow copy of the weights samples.
One more than `train.keep_checkpoints` is there while the oldest is still being removed. A merged
export is a whole pipeline. Images and logs are small beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    return 4 * trained * copies


def run_bytes(config: RunConfig, facts: ModelFacts) -> int:
    """All checkpoints that are there at once, and the exports."""
    sizes = {
        "merged": facts.parameters * _DTYPE_BYTES[config.export.dtype] + facts.frozen_bytes,
        "adapter": 4 * facts.adapter_parameters,
    }
    exports = sum(sizes[kind] for kind in config.export.formats)
    return (config.train.keep_checkpoints + 1) * checkpoint_bytes(config, facts) + exports


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
