"""What DeepGen's connector takes in a backward pass, where it is trained.

Values a token and layer, of the compute dtype: what its norms, its attention and its feed-forward
network keep, counted as autograd saves them under autocast (tests/unit/test_deepgen_plan.py).
"""

from __future__ import annotations

from atelier.config.facts.deepgen import DeepGenFacts
from atelier.config.facts.sd3 import SD3Facts
from atelier.config.schema import RunConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES

_OF_WIDTH = 11  # norms in float32 twice, and queries, keys, values and outputs
_OF_FEED_FORWARD = 2


def connector_kept(config: RunConfig, facts: SD3Facts, rows: int) -> int:
    """Bytes for so many prompts; 0 where it is frozen."""
    if not isinstance(facts, DeepGenFacts) or config.policy.trainable != "dit_connector":
        return 0
    bridge = facts.bridge
    layer = _OF_WIDTH * bridge.width + _OF_FEED_FORWARD * bridge.feed_forward
    around = bridge.states + bridge.tokens + bridge.width
    if config.policy.gradient_checkpointing:
        kept = layer + bridge.layers * bridge.width + around
    else:
        kept = bridge.layers * layer + around
    return rows * facts.text_tokens * kept * DTYPE_BYTES[config.policy.dtype]
