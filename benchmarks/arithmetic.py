"""How many operations the transformer's shape asks for, and how many a second a device can do."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.sd3_shape import Shape, build_transformer
from benchmarks.timing import Meter, timed


class Arithmetic(NamedTuple):
    """Operations of a row: of a forward pass, and with the backward pass that adapters need.

    Two a multiplication and addition; nothing for adapters, nor for what is computed again.
    """

    forward: int
    both: int


def arithmetic(shape: Shape, latents: int, tokens: int) -> Arithmetic:
    """Counted on the meta device, of latents of that side and a prompt of so many tokens."""
    with torch.device("meta"):
        transformer = build_transformer(shape).requires_grad_(False)
        x = torch.empty(1, shape.latent_channels, latents, latents, requires_grad=True)
        told = torch.empty(1, tokens, shape.text_width), torch.empty(1, sum(shape.clip_widths))
        with FlopCounterMode(display=False) as counter:
            velocity = transformer(x, *told, torch.empty(1), return_dict=False)[0]
            forward = counter.get_total_flops()
            velocity.sum().backward()
    return Arithmetic(forward, counter.get_total_flops())


def square_product_rate(
    side: int, dtype: torch.dtype, device: torch.device, repeats: int = 3
) -> float:
    """Operations a second of a product of two square matrices: what a share of the peak is of."""
    one = torch.randn(side, side, device=device, dtype=dtype)
    seconds, _ = timed(lambda: [one @ one for _ in range(10)], Meter(device), repeats)
    return 10 * 2 * side**3 / seconds
