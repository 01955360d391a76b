"""Tensors from each rank to the rank that needs them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from atelier.training.distributed import World

Packets = Mapping[int, Mapping[str, Tensor]]
"""Named tensors by a number that nobody else gives."""


def exchange(world: World, packets: Packets, receiver: Mapping[int, int]) -> Packets:
    """Send packets from rank to rank, none by way of a third. Collective.

    Args:
        world: all ranks of the process group.
        packets: of this rank.
        receiver: number -> another rank that it goes to, of every rank's packets.

    Returns:
        What has come to this rank, on its device.
    """
    device = world.device
    own = {
        number: {name: value.detach().to(device).contiguous() for name, value in packet.items()}
        for number, packet in packets.items()
    }
    shapes = {
        number: {name: (value.shape, value.dtype) for name, value in packet.items()}
        for number, packet in own.items()
    }
    arrived = {}
    # Of each two ranks, both go through their packets in the same order.
    transfers = [
        dist.P2POp(dist.isend, value, receiver[number])
        for number, packet in own.items()
        for value in packet.values()
    ]
    for sender, theirs in enumerate(world.gather(shapes)):
        for number, packet in theirs.items():
            if receiver[number] != world.rank:
                continue
            arrived[number] = {
                name: torch.empty(shape, dtype=dtype, device=device)
                for name, (shape, dtype) in packet.items()
            }
            transfers += [dist.P2POp(dist.irecv, one, sender) for one in arrived[number].values()]
    if transfers:
        for work in dist.batch_isend_irecv(transfers):
            work.wait()
    return arrived
