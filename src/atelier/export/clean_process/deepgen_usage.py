"""Painting with an exported DeepGen model, by plain diffusers and transformers.

The card of every export has these functions, word for word: what is proven with them is what a user
runs. So they have no annotations, and use only what the card imports, too.
"""

from __future__ import annotations

import json

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from safetensors.torch import load_file
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration


def load_parts(folder, dtype=torch.float32):
    """The parts of a model's directory; the transformer in a dtype."""
    here = {"local_files_only": True}
    with open(f"{folder}/connector/config.json") as file:
        heads = json.load(file)["connector"]["num_attention_heads"]
    with open(f"{folder}/prompt_template.json") as file:
        template = json.load(file)
    return {
        "transformer": SD3Transformer2DModel.from_pretrained(
            folder, subfolder="transformer", torch_dtype=dtype, **here
        ),
        "vae": AutoencoderKL.from_pretrained(
            folder, subfolder="vae", torch_dtype=torch.float32, **here
        ),
        "scheduler": FlowMatchEulerDiscreteScheduler.from_pretrained(
            folder, subfolder="scheduler", **here
        ),
        "vlm": Qwen2_5_VLForConditionalGeneration.from_pretrained(
            folder, subfolder="vlm", dtype=torch.float32, **here
        ),
        "tokenizer": AutoTokenizer.from_pretrained(folder, subfolder="tokenizer", **here),
        "bridge": load_file(f"{folder}/connector/model.safetensors"),
        "heads": heads,
        "template": template,
    }


def read(parts, prompt):
    """Hidden states of every sixth layer of the language model, of a prompt and the queries."""
    lines, vlm = parts["template"], parts["vlm"]
    asked = lines["GENERATION"].replace("{input}", prompt)
    text = lines["INSTRUCTION"].replace("{input}", asked)
    ids = parts["tokenizer"](text, return_tensors="pt")["input_ids"].to(vlm.device)
    queries = parts["bridge"]["meta_queries"].to(vlm.device, vlm.dtype)[None]
    embeds = torch.cat([vlm.get_input_embeddings()(ids), queries], dim=1)
    with torch.no_grad():
        states = vlm.model.language_model(
            inputs_embeds=embeds, output_hidden_states=True, use_cache=False
        ).hidden_states
    chosen = range(len(states) - 2, 0, -6)
    return torch.cat([states[layer] for layer in [*chosen][:6]], dim=-1)


def translate(parts, states):
    """What the transformer paints from: tokens [1, S, D] and their mean [1, P]."""
    held = {name: value.to(states) for name, value in parts["bridge"].items()}

    def through(name, x):
        return linear(x, held[f"{name}.weight"], held[f"{name}.bias"])

    def normed(name, x):
        return layer_norm(x, x.shape[-1:], held[f"{name}.weight"], held[f"{name}.bias"], 1e-6)

    def split(x):
        return x.unflatten(-1, (parts["heads"], -1)).transpose(1, 2)

    hidden = through("projector_1", states)
    for layer in range(len({name.split(".")[2] for name in held if ".layers." in name})):
        at = f"connector.layers.{layer}"
        before = normed(f"{at}.layer_norm1", hidden)
        looked = [split(through(f"{at}.self_attn.{one}_proj", before)) for one in "qkv"]
        mixed = scaled_dot_product_attention(*looked).transpose(1, 2).flatten(2)
        hidden = hidden + through(f"{at}.self_attn.out_proj", mixed)
        before = normed(f"{at}.layer_norm2", hidden)
        inner = gelu(through(f"{at}.mlp.fc1", before), approximate="tanh")
        hidden = hidden + through(f"{at}.mlp.fc2", inner)
    return through("projector_3", hidden), through("projector_2", hidden.mean(1))


def paint(parts, conditions, latents, against=None, steps=50, guidance=4.0):
    """An image [H, W, 3] in [0, 1] of noise [1, C, h, w], led away from other conditions if there
    are any."""
    transformer, vae, scheduler = parts["transformer"], parts["vae"], parts["scheduler"]

    def velocity(x, timestep, tokens, pooled):
        told = [one.to(transformer.dtype) for one in (x, tokens, pooled)]
        return transformer(told[0], *told[1:], timestep.expand(1)).sample.float()

    size = latents.shape[-1] * latents.shape[-2] // transformer.config.patch_size**2
    told = scheduler.config
    mu = told.base_shift + (told.max_shift - told.base_shift) * (size - told.base_image_seq_len) / (
        told.max_image_seq_len - told.base_image_seq_len
    )
    shift = {"mu": mu} if told.use_dynamic_shifting else {}
    scheduler.set_timesteps(steps, device=latents.device, **shift)
    x = latents.float()
    with torch.no_grad():
        for timestep in scheduler.timesteps:
            found = velocity(x, timestep, *conditions)
            if against is not None:
                other = velocity(x, timestep, *against)
                found = other + guidance * (found - other)
            x = scheduler.step(found, timestep, x, return_dict=False)[0]
        x = x / vae.config.scaling_factor + vae.config.shift_factor
        image = vae.decode(x.to(vae.dtype)).sample[0].float()
    return (image / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).cpu().numpy()
