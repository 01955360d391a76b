"""Painting and editing with an exported DeepGen model, by plain diffusers and transformers.

The card of every export has these functions, word for word: what is proven with them is what a user
runs. So they have no annotations, and use only what the card imports, too.
"""

from __future__ import annotations

import json

import numpy as np
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from safetensors.torch import load_file
from torch.nn.functional import (
    gelu,
    interpolate,
    layer_norm,
    linear,
    scaled_dot_product_attention,
)
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


def pixels_of(source):
    """An image [3, H, W] in [-1, 1]; its sides are multiples of 32."""
    return torch.from_numpy(np.array(source)).permute(2, 0, 1).float() / 127.5 - 1


def look(parts, source):
    """An image to edit in patches, those of a token together, and how many rows and columns."""
    tower = parts["vlm"].config.vision_config
    size, merge, frames = tower.patch_size, tower.spatial_merge_size, tower.temporal_patch_size
    down, across = source.height // 32, source.width // 32
    fitting = (down * size * merge, across * size * merge)
    seen = interpolate(pixels_of(source)[None], size=fitting, mode="bilinear")[0]
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]
    cut = (((seen + 1) / 2 - mean) / std).reshape(3, down, merge, size, across, merge, size)
    film = cut.permute(1, 4, 2, 5, 0, 3, 6).unsqueeze(5).repeat(1, 1, 1, 1, 1, frames, 1, 1)
    grid = torch.tensor([[1, down * merge, across * merge]])
    return film.reshape(down * across * merge**2, -1), grid


def read(parts, prompt, source=None):
    """Hidden states of every sixth layer of the language model, of a prompt and the queries; of an
    instruction with the image that it changes."""
    lines, vlm = parts["template"], parts["vlm"]
    asked = lines["GENERATION"].replace("{input}", prompt)
    if source is not None:
        patches, grid = look(parts, source)
        count = grid.prod().item() // vlm.config.vision_config.spatial_merge_size**2
        shown = lines["IMG_START_TOKEN"] + lines["IMG_CONTEXT_TOKEN"] * count
        asked = shown + lines["IMG_END_TOKEN"] + "\n" + prompt
    text = lines["INSTRUCTION"].replace("{input}", asked)
    ids = parts["tokenizer"](text, return_tensors="pt")["input_ids"].to(vlm.device)
    queries = parts["bridge"]["meta_queries"].to(vlm.device, vlm.dtype)[None]
    words, how = vlm.get_input_embeddings()(ids), {}
    with torch.no_grad():
        if source is not None:
            places = ids == vlm.config.image_token_id
            grid, patches = grid.to(vlm.device), patches.to(vlm.device)
            image = torch.cat(vlm.model.get_image_features(patches, grid).pooler_output)
            words = words.masked_scatter(places[..., None], image.to(words.dtype))
            more = torch.zeros(1, queries.shape[1], dtype=ids.dtype, device=vlm.device)
            kinds = torch.cat([places.int(), more.int()], dim=1)
            whole = torch.cat([ids, more], dim=1)
            how["position_ids"] = vlm.model.get_rope_index(
                whole, mm_token_type_ids=kinds, image_grid_thw=grid
            )[0]
        states = vlm.model.language_model(
            inputs_embeds=torch.cat([words, queries], dim=1),
            output_hidden_states=True,
            use_cache=False,
            **how,
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


def latent_of(parts, source):
    """An image to edit as the transformer has it [1, C, h, w]."""
    vae = parts["vae"]
    with torch.no_grad():
        shown = pixels_of(source)[None].to(vae.device, vae.dtype)
        found = vae.encode(shown).latent_dist.mean
    return (found.float() - vae.config.shift_factor) * vae.config.scaling_factor


def predict(transformer, x, timestep, tokens, pooled, beside):
    """The velocity of a latent with another one beside it, which is edited."""
    image = torch.cat([transformer.pos_embed(x), transformer.pos_embed(beside)], dim=1)
    signal = transformer.time_text_embed(timestep, pooled)
    text = transformer.context_embedder(tokens)
    for block in transformer.transformer_blocks:
        text, image = block(image, text, signal)
    made = transformer.proj_out(transformer.norm_out(image, signal))
    size = transformer.config.patch_size
    down, across = x.shape[-2] // size, x.shape[-1] // size
    patches = made[:, : down * across].reshape(1, down, across, size, size, -1)
    return patches.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


def paint(parts, conditions, latents, against=None, steps=50, guidance=4.0, beside=None):
    """An image [H, W, 3] in [0, 1] of noise [1, C, h, w], led away from other conditions if there
    are any; of `beside`, a latent, it is an edit."""
    transformer, vae, scheduler = parts["transformer"], parts["vae"], parts["scheduler"]

    def velocity(x, timestep, tokens, pooled):
        x, tokens, pooled = (one.to(transformer.dtype) for one in (x, tokens, pooled))
        if beside is None:
            return transformer(x, tokens, pooled, timestep.expand(1)).sample.float()
        other = beside.to(x)
        return predict(transformer, x, timestep.expand(1), tokens, pooled, other).float()

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
