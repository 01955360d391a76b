"""Model card of the embedded model; `promote` fills in what was measured."""

# ruff: noqa: E501 - a table row cannot be wrapped

CARD = """---
library_name: diffusers
pipeline_tag: text-to-image
license: apache-2.0
---
# Tiny DeepGen

A DeepGen model of 64x64 pictures that is small enough to post-train on a laptop's CPU: real classes in
the published layout, synthetic world, no download. It writes three-letter words and places coloured
shapes; training stopped early on purpose, so that reinforcement learning has room.

```
.venv/bin/atelier run --set policy.family=deepgen --set policy.path=assets/tiny-deepgen
```

## Parts
| folder | class | what it is |
|---|---|---|
| vlm | Qwen2_5_VLForConditionalGeneration | 8 layers, width 64; the connector sees the 7th and the 1st; its vision tower is untrained, since no prompt shows anything |
| connector | the connector of DeepGen | 2 layers, width 96, with 8 queries |
| transformer | SD3Transformer2DModel | 4 layers, width 96, patch 4, query-key norm |
| vae | AutoencoderKL | that of Tiny SD3: 64x64x3 to 16x16x4 |
| tokenizer | Qwen2Tokenizer | that of Tiny Qwen-Image, a cut of the published one |
| scheduler | FlowMatchEulerDiscreteScheduler | |

Parameters: {parameters}. Weights are stored in float16 and load in float32. Prompts outside the scene
world (`atelier.data.scenes.prompt`) mean nothing to it.

## How it was made
```
{command}
python -m atelier.policies.deepgen.pretrain promote DIR/SNAPSHOT assets/tiny-deepgen
```
{images} rendered scenes of the training split, {step} steps of rectified flow with batch {batch} in
{seconds} s on {device} (torch {torch}){before}; language model, connector and transformer were trained at once;
the weights are their moving average. `{record}` holds every option and the curve; `{samples}` shows
held-out prompts. GPU kernels are not bit-reproducible: a rerun gives a sibling, not a twin.

## What it can do
Held-out prompts ({prompts} of words and as many of shapes, content never seen in training), {steps}
denoising steps, on a CPU. Words are read by PP-OCR's recogniser on the whole image (formula of the `ocr` reward),
shapes are judged by the exact checker:

| | OCR similarity | exact match | facts of shapes | pictures right |
|---|---|---|---|---|
{rows}

## Licence
Weights, pictures and prompts come from this repository's own generator and are under its licence.
Letters are drawn in Pillow's built-in font (Aileron, CC0). The classes are those of diffusers and
transformers (Apache 2.0); the tokenizer is a cut of Qwen2.5-VL's (Apache 2.0). No third-party weights
or data went in.
"""
