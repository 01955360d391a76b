"""What a pass through transformers' Llama takes, in bytes.

Of a token, for a language model of width D, F inside its feed-forward network, and c bytes a value
as it is computed, autograd keeps of each layer (tests/unit/test_config_memory_janus.py counts it):

    norms         8 D    what is normalised, in float32; as much again where all is trained
    projections   5 c D  the inputs of q, k, v, gate and up, each cast apart (8 D without autocast)
    attention     c (2 D + 2 x the width of keys), and c x length for the mask of padded rows
    feed-forward  4 c F
"""

from __future__ import annotations

from dataclasses import dataclass

from atelier.config.facts.base import LanguageFacts
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import DTYPE_BYTES


@dataclass(frozen=True)
class LanguageModel:
    """Sizes of one, and how it computes.

    Attributes:
        computed: bytes of a value that layers multiply.
        held: bytes of a weight, and of a value that all layers add to.
        adapted: whether an adapter is trained, and not all of it.
    """

    width: int
    feed_forward: int
    key_value_width: int
    layers: int
    computed: int
    held: int
    adapted: bool

    @classmethod
    def of(cls, policy: PolicyConfig, facts: LanguageFacts) -> LanguageModel:
        """That of a policy."""
        adapted = policy.trainable == "lora"
        return cls(
            width=facts.width,
            feed_forward=facts.feed_forward,
            key_value_width=facts.key_value_width,
            layers=facts.layers,
            computed=DTYPE_BYTES[policy.dtype],
            held=DTYPE_BYTES[policy.base_dtype] if adapted else 4,
            adapted=adapted,
        )

    def keys_and_values(self, tokens: int, growing: bool) -> int:
        """Of all layers. A cache that grows keeps keys as rotary embeddings make them: in the dtype
        of what layers add to."""
        key = max(self.computed, self.held) if growing else self.computed
        return tokens * self.layers * self.key_value_width * (key + self.computed)

    def reading(self, tokens: int, length: int) -> int:
        """A pass without gradients over rows of `length` at its worst, inside a feed-forward
        network: embeddings, what layers add to, a mask. An adapter computes beside a layer."""
        wide = (5 if self.adapted else 3) * self.computed * self.feed_forward
        return tokens * (5 * self.held * self.width + wide + (1 + self.computed) * length)

    def layer_kept(self, tokens: int, length: int) -> int:
        """Of one layer, for its backward pass."""
        width, value = self.width, self.computed
        norms = (8 if self.adapted else 16) * width
        # An adapter casts the input of the attention's last projection, too.
        projections = (5 + self.adapted) * value * width if value < 4 else 8 * width
        attention = value * (2 * width + 2 * self.key_value_width + length)
        return tokens * (norms + projections + attention + 4 * value * self.feed_forward)

    def layer_backward(self, tokens: int) -> int:
        """Gradients inside one layer, at their worst."""
        return tokens * (4 * self.width + 2 * self.computed * self.feed_forward)

    def inputs_kept(self, tokens: int) -> int:
        """Of all layers: what gradient checkpointing keeps."""
        return tokens * self.layers * self.held * self.width

    def end_kept(self, tokens: int) -> int:
        """Of the last norm."""
        return 12 * tokens * self.width

    def end_backward(self, tokens: int) -> int:
        """Gradients inside it."""
        return 16 * tokens * self.width
