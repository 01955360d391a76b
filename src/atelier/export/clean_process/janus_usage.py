"""Editing with an exported Janus, which transformers does for none: `generate` takes words alone.

The card of an export of edits has this function, word for word. So it has no annotations, and uses
only what the card imports, too.
"""

from __future__ import annotations

from inspect import signature

import numpy as np
import torch
from transformers import DynamicCache


def edit(model, processor, prompt, source, wish, guidance_scale, do_sample=True):
    """Image tokens [1, T] of a square image, changed as a prompt says; `wish` stands behind it."""
    tokenizer, inner = processor.tokenizer, model.model
    begin, end = tokenizer.convert_tokens_to_ids([tokenizer.boi_token, tokenizer.eoi_token])

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def embedded(tokens):
        return model.get_input_embeddings()(torch.tensor([tokens], device=model.device))

    before = [tokenizer.bos_token_id, *ids("<|User|>: "), begin]
    after = [*ids(f"{wish}\n\n<|Assistant|>:"), begin]
    words = ids(prompt.strip())
    nothing = [tokenizer.pad_token_id] * len(words)  # what guidance leads away from
    with torch.no_grad():
        # The nearest code is the one of the nearest direction.
        codebook = inner.vqmodel.quantize.embedding.weight
        codebook.copy_(torch.nn.functional.normalize(codebook.double(), dim=-1))
        pixels = torch.from_numpy(np.array(source)).permute(2, 0, 1)[None].float() / 127.5 - 1
        codes = inner.vqmodel.encode(pixels.to(codebook)).image_tokens.view(1, -1)
        image = model.prepare_embeddings_for_image_generation(codes)
        rows = [
            torch.cat([embedded(before), image, embedded([end, *one, *after])], dim=1)
            for one in (words, nothing)
        ]
        # The argument has two names, by the version of transformers.
        takes = signature(inner.language_model.forward).parameters
        held = {"cache" if "cache" in takes else "past_key_values": DynamicCache()}
        step, tokens = torch.cat(rows), []
        for _ in range(codes.shape[1]):
            seen = inner.language_model(inputs_embeds=step, use_cache=True, **held)
            asked, other = inner.generation_head(seen.last_hidden_state[:, -1]).float()
            logits = other + guidance_scale * (asked - other)
            drawn = logits.softmax(-1).multinomial(1) if do_sample else logits.argmax(-1)[None]
            tokens.append(drawn)
            step = model.prepare_embeddings_for_image_generation(drawn[None]).expand(2, -1, -1)
    return torch.stack(tokens, dim=1)
