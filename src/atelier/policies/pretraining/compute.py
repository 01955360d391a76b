"""Pixels, precision, compilation and schedules of a pre-training."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

WARMUP_STEPS = 200  # of what turns images into latents or codes


def to_pixels(images: Tensor) -> Tensor:
    """uint8 [N, H, W, 3] to float [N, 3, H, W] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def differences(decoded: Tensor, pixels: Tensor) -> dict[str, Tensor]:
    """How decoded images [N, 3, H, W] differ: means of l1, mse, and l1 of the image gradients."""
    edges = [functional.l1_loss(decoded.diff(dim=axis), pixels.diff(dim=axis)) for axis in (2, 3)]
    return {
        "l1": functional.l1_loss(decoded, pixels),
        "mse": functional.mse_loss(decoded, pixels),
        "edge": edges[0] + edges[1],
    }


def compiled(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """torch.compile where asked for; code that fails to compile runs eagerly, logged."""
    if not wanted:
        return function
    torch._dynamo.config.suppress_errors = True
    return torch.compile(function, dynamic=False)


def autocast(tensor: Tensor) -> torch.autocast:
    """bfloat16 on the GPU; the CPU stays in float32, where bfloat16 is slower."""
    return torch.autocast("cuda", torch.bfloat16, enabled=tensor.is_cuda)


def cosine(done: float) -> float:
    """A learning rate's share of its peak: from 1 down to 0.02, over `done` in [0, 1]."""
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done))


def adamw(
    groups: Iterable[dict[str, Any]], betas: tuple[float, float], device: torch.device
) -> torch.optim.AdamW:
    """AdamW whose steps can be recorded, with a learning rate of 0 until `set_rate`.

    Args:
        groups: parameters and their weight decay.
    """
    on_gpu = device.type == "cuda"
    rate = torch.zeros((), device=device) if on_gpu else 0.0  # a recorded step reads it there
    return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=on_gpu, capturable=on_gpu)


def decayed(trained: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Groups for `adamw`: matrices decay, norms and biases do not."""
    weights = list(trained)
    return [
        {"params": [one for one in weights if one.ndim > 1], "weight_decay": weight_decay},
        {"params": [one for one in weights if one.ndim <= 1], "weight_decay": 0.0},
    ]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@torch.no_grad()
def follow(averages: Iterable[Tensor], trained: Iterable[Tensor], decay: float, step: int) -> None:
    """Move averages towards the trained weights after `step` updates; at first faster, for what
    they began with was random."""
    decay = min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(averages), list(trained), 1 - decay)


def rounded(parts: Mapping[str, Tensor]) -> dict[str, float]:
    """Parts of a loss, as a log has them."""
    return {name: round(float(value), 5) for name, value in parts.items()}


class Recorded:
    """A training step that a GPU records once and then plays back.

    The steps of small models are thousands of short kernels, which take longer to launch than to
    run. All tensors of the step must stay where they are; what it draws, it draws with `generator`;
    it begins by dropping all gradients.

    Args:
        wanted: else, and on a CPU, the step is called as it is.
    """

    WARM_UP = 3  # steps before the record: libraries and optimizers allocate in them

    def __init__(
        self, step: Callable[[], None], generator: torch.Generator, wanted: bool = True
    ) -> None:
        self._step, self._generator = step, generator
        self._wanted = wanted and generator.device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._called = 0

    def __call__(self) -> None:
        if not self._wanted:
            self._step()
        elif self._graph is not None:
            self._graph.replay()
        elif self._called < self.WARM_UP:
            self._aside()
        else:
            self._record()
        self._called += 1

    def _aside(self) -> None:
        """In a stream of its own, as recording wants it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream().wait_stream(stream)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            self._step()
        graph.replay()  # recording computes nothing
        self._graph = graph
