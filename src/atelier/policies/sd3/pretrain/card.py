"""Model card of the embedded model; `promote` fills in what was measured."""

# ruff: noqa: E501 - a table row cannot be wrapped

CARD = """---
library_name: diffusers
pipeline_tag: text-to-image
license: apache-2.0
---
# Tiny SD3

A `StableDiffusion3Pipeline` of 64x64 pictures that is small enough to post-train on a laptop's CPU:
real classes, synthetic world, no download. It writes three-letter words and places coloured shapes;
training stopped early on purpose, so that reinforcement learning has room.

```python
from diffusers import StableDiffusion3Pipeline
pipeline = StableDiffusion3Pipeline.from_pretrained("assets/tiny-sd3")
pipeline('the word "KEM" in red', num_inference_steps=8, guidance_scale=1.0).images[0]
```

## Parts
| part | class | what it is |
|---|---|---|
| transformer | SD3Transformer2DModel | 4 layers, width 120, patch 4, query-key norm; 2.1 M parameters, trained |
| vae | AutoencoderKL | 64x64x3 to 16x16x4; 0.2 M parameters, trained |
| text_encoder, text_encoder_2 | CLIPTextModelWithProjection | frozen random codes: hidden state -2 is token and position, pooled is the mean of the prompt |
| text_encoder_3 | FunnelBaseModel | any number of tokens to one zero vector, in the place of T5 (diffusers names the type in a log line when loading) |
| tokenizer, _2, _3 | CLIPTokenizer | each lower-case prompt word is a token, all else is spelled; 16 tokens |
| scheduler | FlowMatchEulerDiscreteScheduler | |

With 16 CLIP tokens and the one zero vector the transformer sees 17 text tokens under the plain call.
Weights are stored in float16 and load in float32. Prompts outside the scene world
(`atelier.data.scenes.prompt`) mean nothing to it.

## How it was made
```
{command}
python -m atelier.policies.sd3.pretrain promote DIR/SNAPSHOT assets/tiny-sd3
```
{images} rendered scenes of the training split; the autoencoder first ({vae}), then {step} steps of
rectified flow with batch {batch} in {seconds} s on {device} (torch {torch}); the weights are their
moving average. `{record}` holds every option, the curve and other sigma schedules; `{samples}` shows
held-out prompts. GPU kernels are not bit-reproducible: a rerun gives a sibling, not a twin.

## What it can do
Held-out words ({prompts}, content never seen in training), read by PP-OCR's recogniser on the whole
image (formula of the `ocr` reward), no guidance unless named:

| | OCR similarity | exact match |
|---|---|---|
{rows}
{check}

## Licence
Weights, pictures and prompts come from this repository's own generator and are under its licence.
Letters are drawn in Pillow's built-in font (Aileron, CC0). The classes are those of diffusers and
transformers (Apache 2.0). No third-party weights or data went in.
"""
