"""Whether DeepGen's connector translates from a language model to a transformer.

By what the parts of a model say of themselves, and no weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from atelier.errors import ConfigError

EVERY, MOST = 6, 6


class Translator(Protocol):
    """Sizes of a connector: its queries' width, and values of a token that it reads, of one that it
    gives, and of their mean."""

    @property
    def query_width(self) -> int: ...
    @property
    def states(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def pooled(self) -> int: ...


def chosen_layers(layers: int) -> list[int]:
    """Indices of hidden states, 0 being the embeddings: the last but one, and every sixth below it;
    of 36 layers 35, 29, 23, 17, 11 and 5."""
    return [*range(layers - 1, 0, -EVERY)][:MOST]


def require_fitting(
    connector: Translator, text: Mapping[str, Any], transformer: Mapping[str, Any]
) -> None:
    """Raise ConfigError unless a connector translates from this language model to this
    transformer.

    Args:
        text: configuration of the language model, or what its `text_config` says.
        transformer: that of the transformer.
    """
    text = text.get("text_config") or text
    try:
        width = int(text["hidden_size"])
        layers = len(chosen_layers(int(text["num_hidden_layers"])))
        joint, pooled = (
            int(transformer[name]) for name in ("joint_attention_dim", "pooled_projection_dim")
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"vlm/config.json or transformer/config.json: not those of a DeepGen model: {error!r}"
        ) from error
    facts = {
        "queries": (connector.query_width, width, "the language model's width"),
        "hidden states": (connector.states, layers * width, f"{layers} layers of it"),
        "tokens": (connector.tokens, joint, "joint_attention_dim"),
        "mean": (connector.pooled, pooled, "pooled_projection_dim"),
    }
    for name, (found, wanted, of) in facts.items():
        if found != wanted:
            raise ConfigError(
                f"policy.path: its connector's {name} have {found} values, and {of} is {wanted}: "
                "its parts are of different models"
            )
