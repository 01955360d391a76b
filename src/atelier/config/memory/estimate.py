"""How much memory a rank needs on its device at most, estimated without loading the model.

A rank goes through phases: sd3.py, janus.py and qwen.py say which, and what a family needs in each.
What is held all the time comes on top of each but the encoding of prompts:

    base          what is trained, in policy.base_dtype (float32 where all of it is)
    adapter       4 B x its parameters
    reference     4 B x parameters, where everything is trained and beta > 0 (an adapter is off)
    gradients     4 B x trained
    buckets       4 B x trained: DDP's copies that travel between ranks
    optimizer     8 B x trained (AdamW's moments), and ZeRO's own 4 B masters

and what the family holds: its frozen parts, and a step's experience on this rank. ZeRO-2 shares
gradients and optimizer among the ranks, ZeRO-3 weights too; with offload the optimizer and its
gradients lie in main memory. Moving averages do, where they are not an adapter's, and what a
checkpoint is written from.

Of ranks that only sample (launch.rollout_processes) nothing is trained: they hold base and adapter,
and what the family holds, and go through no phase but those of prompts, of the rollout and of
held-out images. Neither side holds more than one step's experience; ranks that do both hold two,
one step off.

32-bit weights under autocast are cast to 16 bit, and a backward pass keeps the copies. It is an
estimate to choose a machine by: the CUDA context and what the allocator cannot use come on top.
benchmarks/memory.py measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atelier.config.facts.janus import JanusFacts
from atelier.config.facts.qwen import QwenFacts
from atelier.config.facts.read import Facts
from atelier.config.memory.janus import janus_memory
from atelier.config.memory.parts import (
    Own,
    copies_beside_trained,
    copies_of_trained,
    engine,
    shards_of_optimizer,
    tensors_of_a_checkpoint,
    weights,
)
from atelier.config.memory.qwen import qwen_memory
from atelier.config.memory.sd3 import sd3_memory
from atelier.config.schema import RunConfig

SAMPLING = frozenset({"prompts", "rollout", "evaluation"})  # phases in which nothing is learned


@dataclass(frozen=True)
class Memory:
    """Estimated bytes of a rank: held all the time, on top in each phase, and in main memory; and
    of a GPU that only paints, where there are any, with all the ranks that it paints for."""

    held: Mapping[str, int]
    phases: Mapping[str, Mapping[str, int]]
    host: Mapping[str, int]
    painter: Mapping[str, int] = field(default_factory=dict)

    def at(self, phase: str) -> int:
        """Bytes on the device in a phase. Nothing is held yet while prompts are encoded."""
        held = 0 if phase == "prompts" else sum(self.held.values())
        return held + sum(self.phases[phase].values())

    @property
    def peak_phase(self) -> str:
        return max(self.phases, key=self.at)

    @property
    def peak(self) -> int:
        """Bytes on the device at the worst moment."""
        return self.at(self.peak_phase)

    @property
    def painter_peak(self) -> int:
        """Bytes of a GPU that only paints, at the worst moment."""
        return sum(self.painter.values())


def estimate(config: RunConfig, facts: Facts, images: int, actions: int, ranks: int) -> Memory:
    """Bytes each of `ranks` needs when it holds `images` samples of a step, each trained on
    `actions` times. See the module."""
    trained = facts.trained(config)
    state, host = engine(config, trained, ranks)
    kept = copies_of_trained(config, trained)
    beside, average = (kept, {}) if copies_beside_trained(config) else ({}, kept)
    # On GPUs the fused AdamW of DDP needs none; DeepSpeed lays gradients together.
    fused = config.launch.engine == "ddp" and config.launch.device != "cpu"
    sharded = 4 * trained // shards_of_optimizer(config, ranks)
    temporaries = 0 if host or fused else sharded
    images *= 2 if config.train.one_step_off and not config.launch.rollout_processes else 1
    own = _own(config, facts, images, actions, ranks)
    return Memory(
        held={**weights(config, facts, ranks), **own.held, **state, **beside},
        phases={**own.phases, "update": {"optimizer's temporaries": temporaries}},
        host={**host, **average, "checkpoint": tensors_of_a_checkpoint(config, trained)},
        painter=own.painter,
    )


def estimate_sampling(config: RunConfig, facts: Facts, images: int, actions: int) -> Memory:
    """The same of a rank that only samples `images` of a step."""
    own = _own(config, facts, images, actions, 1)
    held = {**weights(config, facts, 1), "reference": 0, **own.held}
    phases = {name: one for name, one in own.phases.items() if name in SAMPLING}
    return Memory(held, phases, host={})


def _own(config: RunConfig, facts: Facts, images: int, actions: int, ranks: int) -> Own:
    """What the family needs."""
    if isinstance(facts, JanusFacts):
        return janus_memory(config, facts, images, actions)
    if isinstance(facts, QwenFacts):
        return qwen_memory(config, facts, images, actions)
    return sd3_memory(config, facts, images, actions, ranks)
