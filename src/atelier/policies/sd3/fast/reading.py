"""A block's tensors out of diffusers' modules, read again only where these hold others.

A block has about sixty of them, and reading takes Python longer than a GPU needs for the block.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from diffusers.models.normalization import RMSNorm
from torch import Tensor, nn

from atelier.policies.sd3.fast import layers
from atelier.policies.sd3.fast.block import Attention, Block, Following, Image, Text
from atelier.policies.sd3.fast.held import Held
from atelier.policies.sd3.fast.layers import Layers

STATES = 8  # adapters on or off, and a few more

Read = Callable[..., Layers]
"""See layers.read."""


class Reading:
    """What was read of one block, by the state of its adapters. A copy has read nothing.

    Args:
        folded: whether adapters are added to the weights.
    """

    def __init__(self, folded: bool = False) -> None:
        self._folded = folded
        self._held: Held | None = None
        self._blocks: dict[Any, Block] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Reading:
        return Reading(self._folded)

    def of(self, block: nn.Module) -> Block:
        """Raises TypeError where a layer is of a kind that is not known (layers.read)."""
        if self._held is not None and self._held.is_same():
            found = self._blocks.get(self._held.state())
            if found is not None:
                return found
        else:
            self._blocks.clear()
        if len(self._blocks) == STATES:
            self._blocks.clear()
        found = read_block(block, self._folded)
        self._held = Held(block)  # after it: reading lays frozen weights together
        self._blocks[self._held.state()] = found
        return found


def read_block(block: Any, folded: bool = False) -> Block:
    """Of a JointTransformerBlock, as it is now."""
    joint, own, read = block.attn, block.attn2, partial(layers.read, folded=folded)
    image = Image(
        read(block.norm1.linear),
        _of_image(joint, read),
        Following(read(joint.to_out[0]), *_feed_forward(block.ff, read)),
        None if own is None else (_of_image(own, read), read(own.to_out[0])),
    )
    following = None
    if not block.context_pre_only:
        following = Following(read(joint.to_add_out), *_feed_forward(block.ff_context, read))
    text = Text(read(block.norm1_context.linear), _of_text(joint, read), following)
    return Block(image, text)


def _of_image(attention: Any, read: Read) -> Attention:
    project = read(attention.to_q, attention.to_k, attention.to_v)
    return Attention(attention.heads, project, _norms(attention.norm_q, attention.norm_k))


def _of_text(attention: Any, read: Read) -> Attention:
    project = read(attention.add_q_proj, attention.add_k_proj, attention.add_v_proj)
    norms = _norms(attention.norm_added_q, attention.norm_added_k)
    return Attention(attention.heads, project, norms)


def _norms(query: RMSNorm | None, key: RMSNorm | None) -> tuple[Tensor, Tensor] | None:
    if query is None or key is None:
        return None
    return query.weight, key.weight


def _feed_forward(network: Any, read: Read) -> tuple[Layers, Layers]:
    return read(network.net[0].proj), read(network.net[2])
