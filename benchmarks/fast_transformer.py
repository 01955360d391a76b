"""The stock transformer of Stable Diffusion 3 beside the fast one (policy.transformer).

    python -m benchmarks.fast_transformer                                     # on a GPU
    python -m benchmarks.fast_transformer --size small --device cpu --dtype float32

One process, random weights of SD3.5-Medium's shape, 512x512, LoRA; the product's own rollout and
replay. No text encoder, autoencoder, reward or optimizer is in any figure. A line of JSON each:

    matmul       rate of a square product in the same dtype: what every share of the peak is of
    rollout      images a second, all steps but the last with log-prob
    train        samples times steps a second: forward and backward of the clipped loss of a
                 micro-batch at a step; `reference`: and a forward with the adapter off, for the KL
    replay       |ratio - 1| of a rollout that is replayed before any update
    equivalence  fast against stock: error of the velocity and of the gradient of all adapters, by
                 the norms of stock's, and the cosine of both gradients; and the errors of either
                 way against stock in float32 with the same weights, which say who is nearer

A share of the peak counts the arithmetic of the transformer itself: nothing for adapters, nor for
what is computed again. With guidance a micro-batch has half the samples and as many rows. Seconds
are medians after a warm-up, in which blocks are compiled. Peak memory is what torch allocated at
most, weights included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Literal

import diffusers
import torch
from torch import Tensor

from atelier.algorithms.policy_loss import clipped_policy_loss
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Part, Rollout, Sample
from atelier.policies.embedding_cache import Embedding
from atelier.policies.freeing import give_back
from atelier.policies.grey_levels import GreyLevels
from atelier.policies.sd3.conditions import Conditions
from atelier.policies.sd3.policy import SD3Policy
from benchmarks.arithmetic import Arithmetic, arithmetic, square_product_rate
from benchmarks.options import at_least
from benchmarks.progress import now
from benchmarks.sd3_shape import SHAPES, Shape, build_transformer, build_vae
from benchmarks.timing import Meter, timed

Way = Literal["stock", "fast", "folded"]
Facts = dict[str, object]
Answer = tuple[Tensor, Tensor]
"""A velocity, and the gradient of all adapters."""

CLIP_RANGE = 1e-4
MOST_GUIDANCE = 100.0  # that a configuration takes
PROMPT = Prompt(0, 0, "a sign that says SUN", {})


@dataclass(frozen=True)
class Size:
    """A shape, the side of its images (None: its own) and of their latents, tokens of a prompt, and
    the side of the product that is the peak."""

    shape: Shape
    resolution: int | None
    latents: int
    tokens: int
    product: int


SIZES = {
    "medium": Size(SHAPES["medium"], 512, 64, 205, 8192),
    "small": Size(SHAPES["small"], None, 16, 5, 256),
}


class RandomEmbeddings:
    """In the place of text encoders. Those of a text are made once, for making them takes longer
    than a step of a rollout."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self._size, self._device = size, device
        self._made: dict[str, Embedding] = {}

    def encode(self, texts: Sequence[str]) -> Conditions:
        for one in {*texts} - self._made.keys():
            self._made[one] = self._random(one)
        return Conditions([self._made[one] for one in texts])

    def _random(self, text: str) -> Embedding:
        shape, generator = self._size.shape, torch.Generator().manual_seed(len(text))
        tokens = torch.randn(self._size.tokens, shape.text_width, generator=generator)
        pooled = torch.randn(sum(shape.clip_widths), generator=generator)
        return {"embedding": tokens.to(self._device), "pooled": pooled.to(self._device)}


class UndecodedPolicy(SD3Policy):
    """Its images are not made of their latents."""

    def decode(self, latents: Tensor) -> GreyLevels:
        return GreyLevels(torch.zeros(len(latents), 1, 1, 3), "")


@dataclass(frozen=True)
class Bench:
    """A policy and what it is measured with."""

    policy: UndecodedPolicy
    samples: list[Sample]
    guidance: float
    repeats: int

    @property
    def device(self) -> torch.device:
        return self.policy.device

    def rollout(self) -> Rollout:
        return self.policy.rollout(self.policy.module, self.samples)

    def update(self, rollout: Rollout, action: int, with_reference: bool) -> None:
        """Forward and backward, gradients dropped."""
        part = Part(slice(action, action + 1))
        replay = self.policy.replay(self.policy.module, rollout, part, with_reference)
        assert replay.log_prob is not None
        assert rollout.old_log_probs is not None
        old = rollout.old_log_probs[:, part.actions]
        advantages = torch.ones_like(old)
        loss = clipped_policy_loss(replay.log_prob, old, advantages, CLIP_RANGE, CLIP_RANGE).loss
        if with_reference:
            known = replay.statistics
            loss = loss.mean() + (known["velocity"] - known["reference_velocity"]).square().mean()
        loss.mean().backward()
        self.policy.module.zero_grad()

    def gap(self, rollout: Rollout) -> Facts:
        """Before any update."""
        with torch.no_grad():
            replays = [
                self.policy.replay(self.policy.module, rollout, part, False).log_prob
                for part in self.policy.parts(rollout)
            ]
        gap = (torch.cat(replays, dim=1) - rollout.old_log_probs).exp().sub(1).abs()
        return {"mean": float(gap.mean()), "max": float(gap.max())}

    def answer(self) -> Answer:
        """The velocity of fixed latents, and the gradient of all adapters, on the CPU."""
        x = self.policy.noise(range(len(self.samples)))[:, 0]
        conditions = self.policy.encode([one.prompt for one in self.samples], self.guidance)
        told = (torch.tensor([500.0], device=self.device), conditions, self.guidance)
        velocity = self.policy.velocity(self.policy.module, x, *told)
        weight = self.policy.noise(range(100, 100 + len(x)))[:, 0]
        (velocity * weight).sum().backward()
        gradients = [one.grad.flatten() for one in self.policy.trainable().values()]
        found = velocity.detach().cpu(), torch.cat(gradients).cpu()
        self.policy.module.zero_grad()
        return found


def bench(
    way: Way, size: Size, guidance: float, options: argparse.Namespace, exact: bool = False
) -> Bench:
    """The same weights each time; adapters that do something.

    Args:
        exact: whether it computes in float32, with the weights that options.dtype can hold;
            activations, which are larger then, are recomputed.
    """
    device, held = torch.device(options.device), getattr(torch, options.dtype)
    dtype = "float32" if exact else options.dtype
    count = options.rows // (1 if guidance == 1 else 2)
    config = RunConfig.model_validate(
        {
            "policy": {
                "trainable": "lora",
                "dtype": dtype,
                "base_dtype": dtype,
                "resolution": size.resolution,
                "gradient_checkpointing": options.checkpointing or exact,
                "transformer": "stock" if way == "stock" else "fast",
                "lora": {"folded": way == "folded"},
                "compile": options.compile,
            },
            "rollout": {
                "micro_batch_size": count,
                "num_inference_steps": options.steps,
                "guidance_scale": guidance,
                "dynamics": "flow_sde",
                "noise_level": 0.7,
                "window": {"strategy": "all"},
            },
        }
    )
    torch.manual_seed(0)
    with device:
        transformer = build_transformer(size.shape).to(getattr(torch, dtype))
    narrow = replace(size.shape, vae_channels=(32,) * len(size.shape.vae_channels))
    pipeline = SimpleNamespace(
        transformer=transformer,
        vae=build_vae(narrow),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    policy = UndecodedPolicy(pipeline, RandomEmbeddings(size, device), config, device)
    for one in policy.module.parameters():
        one.data = one.data.to(held).to(one.dtype)
    generator = torch.Generator().manual_seed(0)
    for name, one in policy.trainable().items():
        if "lora_B" in name:
            one.data = torch.randn(one.shape, generator=generator).to(one) * 1e-2
    policy.begin_step(1)
    samples = [Sample(index, 0, PROMPT) for index in range(count)]
    return Bench(policy, samples, guidance, options.repeats)


def speeds(one: Bench, work: Arithmetic, peak: float) -> Iterator[Facts]:
    """Of a rollout, and of a step of a micro-batch that is trained, in the middle of it."""
    count, rows = len(one.samples), len(one.samples) * (1 if one.guidance == 1 else 2)
    meter, rollout = Meter(one.device), one.rollout()
    steps = len(rollout.record["schedule"].steps)
    seconds, memory = timed(one.rollout, meter, one.repeats)
    yield {
        "phase": "rollout",
        "images_per_second": count / seconds,
        "share_of_peak": rows * steps * work.forward / seconds / peak,
        "peak_gib": memory,
    }
    for with_reference in (False, True):

        def update(reference: bool = with_reference) -> None:
            one.update(rollout, rollout.actions // 2, reference)

        seconds, memory = timed(update, meter, one.repeats)
        operations = rows * (work.both + (work.forward if with_reference else 0))
        yield {
            "phase": "train",
            "reference": with_reference,
            "sample_steps_per_second": count / seconds,
            "share_of_peak": operations / seconds / peak,
            "peak_gib": memory,
        }
    yield {"phase": "replay", **one.gap(rollout)}


def errors(found: Answer, expected: Answer) -> tuple[float, float]:
    """Of the velocity and of the gradient, by the norms of what is expected."""
    velocity, gradient = (
        float((a - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)
    )
    return velocity, gradient


def equivalence(stock: Answer, fast: Answer, exact: Answer) -> Facts:
    """Of fast and stock, and of either and what is exact."""
    cosine = torch.nn.functional.cosine_similarity(stock[1].double(), fast[1].double(), dim=0)
    facts: Facts = {}
    for prefix, found, expected in (
        ("", fast, stock),
        ("stock_error_", stock, exact),
        ("fast_error_", fast, exact),
    ):
        facts[f"{prefix}velocity"], facts[f"{prefix}gradient"] = errors(found, expected)
    return {**facts, "gradient_cosine": float(cosine)}


def results(options: argparse.Namespace) -> Iterator[Facts]:
    """All lines."""
    size = SIZES[options.size]
    on_gpu = torch.device(options.device).type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else "cpu"
    yield {"device": name, "torch": torch.__version__, "diffusers": diffusers.__version__}
    yield {"size": options.size, "dtype": options.dtype, "rows": options.rows}
    work = arithmetic(size.shape, size.latents, size.tokens)
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    peak = square_product_rate(size.product, dtype, device, max(1, options.repeats))
    yield {"phase": "matmul", "teraflops": peak / 1e12}
    for guidance in options.guidance:
        answers: dict[Way, Answer] = {}
        for way in options.ways:
            now(f"guidance {guidance:g}: {way}")
            one = bench(way, size, guidance, options)
            answers[way] = one.answer()
            for facts in speeds(one, work, peak) if options.repeats else ():
                yield {"guidance": guidance, "way": way, **facts}
            del one
            give_back(torch.device(options.device))
        now(f"guidance {guidance:g}: stock in float32, to compare with")
        exact = bench("stock", size, guidance, options, exact=True).answer()
        give_back(torch.device(options.device))
        for way in options.ways[1:]:
            found = equivalence(answers["stock"], answers[way], exact)
            yield {"guidance": guidance, "way": way, "phase": "equivalence", **found}


def device_name(text: str) -> str:
    """Of a device that is here."""
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:  # AssertionError: a torch without CUDA
        why = str(error).partition("\n")[0]
        raise argparse.ArgumentTypeError(
            f"torch has no {text!r} here ({why}); try --size small --device cpu --dtype float32"
        ) from error
    return text


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="medium", choices=SIZES)
    parser.add_argument("--device", type=device_name, default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--rows", type=at_least(2), default=24, help="of a micro-batch, even")
    parser.add_argument("--guidance", type=at_least(1.0), nargs="+", default=[1.0, 4.5])
    parser.add_argument("--steps", type=at_least(1), default=10, help="of denoising")
    parser.add_argument(
        "--repeats", type=at_least(0), default=3, help="0: only compare what they give"
    )
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["stock", "fast"],
        choices=("stock", "fast", "folded"),
        help="stock is what others are compared with; folded: fast with policy.lora.folded",
    )
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="blocks of the fast transformer; default: on GPUs",
    )
    options = parser.parse_args(words)
    if options.rows % 2:
        parser.error("--rows: an even number; with guidance an image has two")
    if max(options.guidance) > MOST_GUIDANCE:
        parser.error(f"--guidance: {MOST_GUIDANCE:g} at most")
    options.ways = list(dict.fromkeys(options.ways))  # each once
    if options.ways[0] != "stock":
        parser.error("--ways: stock comes first, others are compared with it")
    return options


def main(words: Sequence[str] | None = None) -> None:
    options = arguments_of(words)
    for facts in results(options):
        rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in facts.items()}
        print(json.dumps(rounded), flush=True)


if __name__ == "__main__":
    main()
