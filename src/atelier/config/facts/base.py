"""What the plan, the disk and the memory of every family are made of."""

from __future__ import annotations

from dataclasses import dataclass

from atelier.config.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Sizes of a model for what a configuration trains.

    Attributes:
        parameters: of the part that is trained: a transformer, or a language model with all that
            draws by it.
        untrained_parameters: of those, which stay as they are where all of the part is trained.
        adapter_parameters: of the LoRA the configuration describes.
        layers: blocks of the part that is trained.
        width: values of a token between them.
        frozen_bytes: of all other parts, as stored.
        unknown_targets: LoRA targets that are not linear layers, or nothing.
    """

    parameters: int
    untrained_parameters: int = 0
    adapter_parameters: int
    layers: int
    width: int
    frozen_bytes: int
    unknown_targets: tuple[str, ...] = ()

    def trained(self, config: RunConfig) -> int:
        """Parameters that an optimizer steps."""
        if config.policy.trainable == "lora":
            return self.adapter_parameters
        return self.parameters - self.untrained_parameters

    def merged_bytes(self, value: int) -> int:
        """Of an exported model whose trained part is stored in `value` bytes a parameter."""
        return self.parameters * value + self.frozen_bytes


@dataclass(frozen=True, kw_only=True)
class LanguageFacts(ModelFacts):
    """Of a language model that is trained, with all that predicts its tokens.

    Attributes:
        vocabulary: tokens of text.
        key_value_width: values of a token's keys, and of its values, in a layer.
        feed_forward: values of a token inside a layer's feed-forward network.
    """

    vocabulary: int
    key_value_width: int
    feed_forward: int
