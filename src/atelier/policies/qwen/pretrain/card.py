"""Model card of an embedded pipeline; `promote` fills in what was measured."""

# ruff: noqa: E501 - a table row cannot be wrapped

from __future__ import annotations

from typing import Any

from atelier.policies.pretraining.options import command
from atelier.policies.pretraining.snapshots import RECORD, SAMPLES
from atelier.policies.qwen.pretrain.exam import GATE, WAYS
from atelier.policies.qwen.pretrain.options import (
    AutoencoderOptions,
    PainterOptions,
    WriterOptions,
)
from atelier.policies.qwen.pretrain.world import LEVELS

MODULE = "atelier.policies.qwen.pretrain"

CARD = """---
library_name: diffusers
pipeline_tag: {tag}
license: apache-2.0
---
# {title}

{what}

{use}

## Parts
| part | class | what it is |
|---|---|---|
| text_encoder | Qwen2_5_VLForConditionalGeneration | 4 layers, width 96; {encoder_what} |
| transformer | QwenImageTransformer2DModel | {layers} layers, 3 heads of 32; 64 tokens a picture{reference} |
| vae | AutoencoderKLQwenImage | 64x64x3 to 16x16x4, every earlier frame forgotten |
| tokenizer | Qwen2Tokenizer | a cut of the published vocabulary: the stock template is {drop} tokens, words of the scene world one each, all else is spelled |
| scheduler | FlowMatchEulerDiscreteScheduler | the noise levels of `rollout.environment.preset: lightning`: 8 steps, guidance 1 |

Weights are stored in float16 and load in float32. Prompts outside the scene world mean nothing to it.

## What is written matters
{task} The transformer learned beside user's words that were true, nearly true, another's or none, and
painted what the completion said: a wrong completion is a wrong picture. The writer knows some clues
well and others by half, and is right about every other time, so that reinforcement learning has room.

Share of pictures that are right in every fact ({heldout} held-out riddles, on a CPU, completions at
temperature 1), and what `promote` demands:

| completion | right | demanded |
|---|---|---|
{rows}

{words} of the writer's completions are right in words; {ceiling} of true pictures are right after the
autoencoder.

## How it was made
```
{commands}
```
On {device} (torch {torch}); {step} steps of the transformer in {seconds} s. `{record}` holds every
option and curve; `{samples}` shows held-out riddles' solutions, and what was written instead.
GPU kernels are not bit-reproducible: a rerun gives a sibling, not a twin.

## Licence
Weights, pictures and prompts come from this repository's own generator and are under its licence. The
tokens are some of those of Qwen2.5 (Apache 2.0); the classes are those of diffusers and transformers
(Apache 2.0). No third-party weights or data went in.
"""

TEXT = {
    "tag": "text-to-image",
    "title": "Tiny Qwen-Image",
    "what": "A `QwenImagePipeline` of 64x64 pictures that is small enough to post-train on a laptop's CPU: real\nclasses, synthetic world, no download. Its language model solves riddles about coloured shapes, and its\ntransformer paints what the language model wrote.",
    "use": '```python\nfrom diffusers import QwenImagePipeline\n\npipeline = QwenImagePipeline.from_pretrained("assets/tiny-qwen-image")\npipeline.set_progress_bar_config(disable=True)\n```\nThe plain call paints from a prompt alone, which is not what this pipeline is for: without a completion\nit paints anything. `policy.family: qwen` writes first.',
    "encoder_what": "it never sees a picture, and has the least vision tower there can be",
    "reference": "",
    "drop": "34",
    "task": "A prompt names colours and shapes by what they are known for (`data.scene_wording: riddle`).",
}
EDIT = {
    "tag": "image-to-image",
    "title": "Tiny Qwen-Image-Edit",
    "what": "A `QwenImageEditPlusPipeline` of 64x64 pictures that is small enough to post-train on a laptop's CPU:\nreal classes, synthetic world, no download. Its language model solves riddles about what is to be changed,\nand its transformer changes what the language model wrote.",
    "use": "A source image is seen in 64 x 64 pixels by both: `rollout.environment.condition_side: 64` and\n`reference_side: 64` (`atelier.policies.qwen.areas` sets diffusers' constants).",
    "encoder_what": "2 layers of vision of width 48, 16 tokens a picture",
    "reference": ", and 64 of its source",
    "drop": "64",
    "task": "An instruction names colours and shapes by what they are known for (`data.scene_wording: riddle`).",
}


def card(record: dict[str, Any]) -> str:
    """The README of a pipeline whose record is complete."""
    options, measured, parts = record["options"], record["measured"], record["parts"]
    kind = options["kind"]
    verbs = (
        ("autoencoder", AutoencoderOptions, parts["autoencoder"]["options"]),
        ("writer", WriterOptions, parts["writer"]["options"]),
        ("painter", PainterOptions, options),
    )
    commands = [
        command(MODULE, kind_of, values, leave_out=("tokenizer",), verb=verb)
        for verb, kind_of, values in verbs
    ]
    target = "assets/tiny-qwen-image" + ("" if kind == "text" else "-edit")
    commands.append(f"python -m {MODULE} promote DIR/best {target}")
    rows = [
        f"| {way} | {measured[way]:.3f} | {GATE[way][0]:g} to {GATE[way][1]:g} |" for way in WAYS
    ]
    rows += [
        f"| {way}, edits of {level} steps | {measured[f'C{level}'][way]:.3f} | |"
        for level in LEVELS
        if f"C{level}" in measured
        for way in WAYS
    ]
    return CARD.format(
        **(TEXT if kind == "text" else EDIT),
        layers=options["layers"],
        heldout=measured["heldout"],
        rows="\n".join(rows),
        words=f"{measured['right completions']:.3f}",
        ceiling=f"{measured['ceiling']:.3f}",
        commands="\n".join(commands),
        device=record["device"],
        torch=record["torch"],
        step=record["snapshot"]["step"],
        seconds=round(record["snapshot"]["seconds"]),
        record=RECORD,
        samples=SAMPLES,
    )
