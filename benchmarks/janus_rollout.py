"""Sampling and replay of image tokens by a model of Janus-Pro-1B's shape, beside plain `generate`.

    python -m benchmarks.janus_rollout                          # on a GPU, bfloat16
    python -m benchmarks.janus_rollout --tiny --device cpu      # does it run at all?

Weights are random: what is measured are tokens a second, in one process and at one batch, with the
same classifier-free guidance. Prompts are of three lengths, so that there is padding.

- Equivalence, in float32: the likeliest tokens of both, by `generate(do_sample=False)` and by
  top_k=1; and the decode/replay gap of our log-probs.
- Speed: each way after a warm-up, --repeats times, the median. An execution is one of
  policies.janus.decoding.
- Replay: forward and backward of --sequences sequences, all parameters of the language model and
  the image head trained, without an optimizer.

Peak memory is what torch allocated at most in a phase, weights included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import get_args

import torch
import transformers
from torch import Tensor
from transformers import (
    GenerationConfig,
    JanusForConditionalGeneration,
    StaticCache,
)

from atelier.policies.janus.conversation import Context
from atelier.policies.janus.decoding import Execution
from atelier.policies.janus.log_probs import ImageForm, Sampler
from atelier.policies.janus.module import CACHE_ARGUMENT, JanusModule, Segment
from atelier.policies.janus.rows import Rows, stack
from atelier.policies.janus.sampling import Generation
from atelier.policies.janus.trainable import train_fully
from atelier.policies.language.adapters import require_frozen
from benchmarks.janus_shape import JANUS_SHAPES, JanusShape, janus_config
from benchmarks.timing import Meter, timed

PAD, BOS, EOS, BOI, IMAGE = 0, 1, 2, 3, 5
ON_A_CPU = ("eager", "dynamic", "compile")
LENGTHS = (24, 18, 12)  # of prompts, in tokens


TINY = JanusShape(64, 2, 4, 128, 64, 8, 16, 96, 32, 2, 4, 32, (1, 1, 1, 1, 1))


def build(shape: JanusShape) -> JanusForConditionalGeneration:
    """Random weights of the real class, on the default device."""
    marks = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    torch.manual_seed(0)
    model = JanusForConditionalGeneration._from_config(
        janus_config(shape, image_token_id=IMAGE, **marks), attn_implementation="sdpa"
    )
    with torch.no_grad():  # or every distribution is flat, and every comparison a toss
        model.model.generation_embeddings.weight.normal_()
        model.model.generation_head.vision_head.weight.normal_(std=shape.width**-0.5)
        model.model.generation_head.proj_out.weight.normal_(std=shape.width**-0.5)
        for name in ("fc1", "hidden_layers.0"):
            layer = model.model.generation_aligner.get_submodule(name)
            layer.weight.normal_(std=0.05 / layer.in_features**0.5)
    model.generation_config = GenerationConfig(**marks, generation_kwargs={"boi_token_id": BOI})
    return model.eval()


def prompts(batch: int, vocabulary: int, device: torch.device) -> Rows:
    """Random words, of different lengths."""
    generator = torch.Generator().manual_seed(0)
    contexts = []
    for row in range(batch):
        length = LENGTHS[row % len(LENGTHS)]
        words = torch.randint(6, vocabulary, (length,), generator=generator).tolist()
        contexts.append(Context((BOS, *words, BOI), (1, 1 + length)))
    return stack(contexts, [[]] * batch, PAD).to(device)


def plain(
    model: JanusForConditionalGeneration, rows: Rows, scale: float, **settings: bool
) -> Tensor:
    """Codes by the library alone, with its static cache (5.17 fails to make it by itself)."""
    places = rows.tokens.shape[1] + model.config.vision_config.num_image_tokens
    cache = StaticCache(config=model.config.text_config, max_cache_len=places)
    return model.generate(
        rows.tokens,
        attention_mask=rows.mask.long(),
        generation_mode="image",
        guidance_scale=scale,
        **{CACHE_ARGUMENT: cache},
        **settings,
    )


def equivalence(
    module: JanusModule, rows: Rows, scale: float, execution: Execution
) -> dict[str, object]:
    """Of the likeliest tokens, and of log-probs in decoding and in replay."""
    greedy = Sampler(guidance_scale=scale, top_k=1)
    generation = Generation(module, execution)
    keys = range(len(rows))
    theirs = plain(module.janus, rows, scale, do_sample=False)
    ours = generation.images(rows, keys, greedy).codes
    sampler = Sampler(guidance_scale=scale)
    drawn = generation.images(rows, keys, sampler)
    with torch.no_grad():
        replayed = module(Segment(rows, drawn.codes, ImageForm(sampler=sampler)))
    gap = (replayed - drawn.log_probs).abs()
    return {
        "dtype": str(module.language_model.dtype).removeprefix("torch."),
        "execution": execution,
        "equal_tokens": f"{int((theirs == ours).sum())}/{ours.numel()}",
        "replay_gap_mean": float(gap.mean()),
        "replay_gap_max": float(gap.max()),
        "mean_log_prob": float(drawn.log_probs.mean()),
    }


def speed(
    module: JanusModule, rows: Rows, scale: float, executions: Sequence[Execution], repeats: int
) -> Iterator[dict[str, object]]:
    """Tokens a second of images that are sampled: conditional and unconditional rows count once."""
    meter = Meter(rows.tokens.device)
    count = len(rows) * module.image_tokens

    def library() -> Tensor:
        return plain(module.janus, rows, scale, do_sample=True, top_k=0)

    seconds, peak = timed(library, meter, repeats)
    base = count / seconds
    yield {"way": "generate", "tokens_per_second": base, "seconds": seconds, "peak_gib": peak}
    for execution in executions:
        generation = Generation(module, execution)

        def ours(one: Generation = generation) -> object:
            return one.images(rows, range(len(rows)), Sampler(guidance_scale=scale))

        try:
            seconds, peak = timed(ours, meter, repeats)
        except RuntimeError as error:  # the others are worth their numbers all the same
            yield {"way": execution, "error": str(error)[:300]}
            continue
        rate = count / seconds
        yield {
            "way": execution,
            "tokens_per_second": rate,
            "seconds": seconds,
            "peak_gib": peak,
            "times_generate": rate / base,
        }


def replay(module: JanusModule, rows: Rows, scale: float, repeats: int) -> dict[str, object]:
    """One forward and backward pass of all rows."""
    shape = (len(rows), module.image_tokens)
    codes = torch.randint(module.janus.config.vq_config.num_embeddings, shape)
    form = ImageForm(sampler=Sampler(guidance_scale=scale))
    segment = Segment(rows, codes.to(rows.tokens.device), form)
    train_fully(module, text=False)
    require_frozen(module)

    def once() -> None:
        module(segment).mean().backward()
        module.zero_grad()

    seconds, peak = timed(once, Meter(rows.tokens.device), repeats)
    return {"way": "replay", "sequences": len(rows), "seconds": seconds, "peak_gib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a small shape")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--batch", type=int, default=14, help="images sampled at once")
    parser.add_argument("--sequences", type=int, default=14, help="sequences replayed at once")
    parser.add_argument("--guidance-scale", type=float, default=5.0)
    parser.add_argument(
        "--executions", nargs="+", default=["eager", "cuda_graph"], choices=get_args(Execution)
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-checkpointing", action="store_true", help="keep all activations")
    options = parser.parse_args()
    device, shape = torch.device(options.device), TINY if options.tiny else JANUS_SHAPES["1b"]
    executions = [one for one in options.executions if device.type == "cuda" or one in ON_A_CPU]

    def say(facts: dict[str, object]) -> None:
        rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in facts.items()}
        print(json.dumps(rounded), flush=True)

    with device:
        model = build(shape)
    module = JanusModule(model, gradient_checkpointing=not options.no_checkpointing)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    count = sum(one.numel() for one in module.parameters())
    say({"device": name, "torch": torch.__version__, "transformers": transformers.__version__})
    say({"parameters": count, "image_tokens": module.image_tokens, "batch": options.batch})

    scale = options.guidance_scale
    few = prompts(3, shape.vocabulary, device)
    for execution in executions:
        try:
            say(equivalence(module, few, scale, execution))
        except RuntimeError as error:
            say({"execution": execution, "error": str(error)[:300]})
    module.to(getattr(torch, options.dtype))
    rows = prompts(options.batch, shape.vocabulary, device)
    for facts in speed(module, rows, scale, executions, options.repeats):
        say(facts)
    say(
        replay(module, prompts(options.sequences, shape.vocabulary, device), scale, options.repeats)
    )


if __name__ == "__main__":
    main()
