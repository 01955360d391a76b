"""A block's tensors out of diffusers' modules, read again only where these hold others.

A block has about sixty of them, and reading takes Python longer than a GPU needs for the block.
"""

from __future__ import annotations

from typing import Any

from diffusers.models.normalization import RMSNorm
from torch import Tensor, nn

from atelier.policies.sd3.fast.block import Attention, Block, Following, Image, Text
from atelier.policies.sd3.fast.held import Held
from atelier.policies.sd3.fast.layers import Layers, read

STATES = 8  # adapters on or off, and a few more


class Reading:
    """What was read of one block, by the state of its adapters. A copy has read nothing."""

    def __init__(self) -> None:
        self._held: Held | None = None
        self._blocks: dict[Any, Block] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Reading:
        return Reading()

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
        found = read_block(block)
        self._held = Held(block)  # after it: reading lays frozen weights together
        self._blocks[self._held.state()] = found
        return found


def read_block(block: Any) -> Block:
    """Of a JointTransformerBlock, as it is now."""
    joint, own = block.attn, block.attn2
    image = Image(
        read(block.norm1.linear),
        _of_image(joint),
        Following(read(joint.to_out[0]), *_feed_forward(block.ff)),
        None if own is None else (_of_image(own), read(own.to_out[0])),
    )
    following = None
    if not block.context_pre_only:
        following = Following(read(joint.to_add_out), *_feed_forward(block.ff_context))
    return Block(image, Text(read(block.norm1_context.linear), _of_text(joint), following))


def _of_image(attention: Any) -> Attention:
    layers = read(attention.to_q, attention.to_k, attention.to_v)
    return Attention(attention.heads, layers, _norms(attention.norm_q, attention.norm_k))


def _of_text(attention: Any) -> Attention:
    layers = read(attention.add_q_proj, attention.add_k_proj, attention.add_v_proj)
    norms = _norms(attention.norm_added_q, attention.norm_added_k)
    return Attention(attention.heads, layers, norms)


def _norms(query: RMSNorm | None, key: RMSNorm | None) -> tuple[Tensor, Tensor] | None:
    if query is None or key is None:
        return None
    return query.weight, key.weight


def _feed_forward(network: Any) -> tuple[Layers, Layers]:
    return read(network.net[0].proj), read(network.net[2])
