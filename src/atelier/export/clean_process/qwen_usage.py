"""Writing with an exported text encoder, and painting from what it wrote.

The card of every export of a Qwen-Image has these functions, word for word: what is proven with
them is what a user runs. So they have no annotations, and use only what the card imports, too.
"""

from __future__ import annotations

import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from transformers import GenerationConfig


def read(pipe, text, source=None, area=384 * 384):
    """A prompt in tokens; an image that it edits, as so many pixels."""
    if source is None:
        return pipe.tokenizer(text, return_tensors="pt").to(pipe.device)
    width, height = edit_plus.calculate_dimensions(area, source.width / source.height)
    seen = pipe.image_processor.resize(source, height, width)
    return pipe.processor(text=[text], images=[seen], return_tensors="pt").to(pipe.device)


def write(encoder, tokenizer, inputs, **how):
    """The tokens of a completion [1, T], with the mark that ends it and no other."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    without_words = range(len(tokenizer), encoder.lm_head.out_features)
    never = {*tokenizer.all_special_ids, *without_words} - {end}
    encoder.generation_config = GenerationConfig()  # the file's would draw otherwise
    whole = encoder.generate(
        **inputs,
        suppress_tokens=sorted(never),
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
        **how,
    )
    return ended(tokenizer, whole[:, inputs["input_ids"].shape[1] :])


def ended(tokenizer, words):
    """A completion [1, T] with the mark that ends it, also where it was cut off."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    return words if words[0, -1] == end else torch.nn.functional.pad(words, (0, 1), value=end)


def embeddings(encoder, inputs, skip, completion=None):
    """What the transformer paints from [1, L, D]: all hidden states but the first ones."""
    inputs = dict(inputs)
    if completion is not None:
        follows = {"input_ids": completion, "attention_mask": torch.ones_like(completion)}
        if "mm_token_type_ids" in inputs:
            follows["mm_token_type_ids"] = torch.zeros_like(completion)
        inputs |= {name: torch.cat([inputs[name], more], 1) for name, more in follows.items()}
    with torch.no_grad():
        return encoder.model(**inputs, use_cache=False).last_hidden_state[:, skip:]


def paint(pipe, embeds, negative=None, **how):
    """An image of embeddings, led away from the negative ones if there are any."""
    for name, one in (("prompt_embeds", embeds), ("negative_prompt_embeds", negative)):
        if one is not None:
            how[name] = one.to(pipe.transformer.dtype)
            how[f"{name}_mask"] = torch.ones(one.shape[:2], dtype=torch.bool, device=one.device)
    return pipe(max_sequence_length=1024, **how).images[0]
