"""Which denoising steps of a rollout are stochastic and trained.

The window is drawn once a step of training from a key of seed and step, so every rank and every
member of a group has the same one: windows that differ inside a group turn step difficulty into
reward noise, and a window fixed for a whole run trains two steps of ten (spec flow 2.2).

The last transition is never stochastic: its std is 0 (cps) or so small that the log-probability
blows up (flow_sde), see spec flow 1.4.
"""

from __future__ import annotations

import random

from atelier.config.schema import WindowConfig
from atelier.data.keys import key


def draw_window(config: WindowConfig, num_steps: int, seed: int, step: int) -> range:
    """The stochastic steps of training step `step`: a non-empty range inside [0, num_steps - 1)."""
    low, high = config.bounds(num_steps)
    size = high - low if config.strategy == "all" else config.size
    start = random.Random(key("window", seed, step)).randint(low, high - size)
    return range(start, start + size)
