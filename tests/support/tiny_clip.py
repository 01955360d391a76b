"""A CLIP model of random weights, saved as a checkpoint with its processor."""

import json

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

LONGEST = 12


def save_tiny_clip(folder, seed=0):
    """Write the checkpoint and return its folder: 8-dimensional embeddings, images of 32 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{one}</w>" for one in letters)]
    (folder / "vocab.json").write_text(json.dumps({one: n for n, one in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.model_max_length = LONGEST
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = CLIPConfig(
        text_config={
            **sizes,
            "vocab_size": len(tokens),
            "max_position_embeddings": LONGEST,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 1,
        },
        vision_config={**sizes, "image_size": 32, "patch_size": 16},
        projection_dim=8,
    )
    torch.manual_seed(seed)
    CLIPModel(config).save_pretrained(folder)
    side = {"height": 32, "width": 32}
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder
