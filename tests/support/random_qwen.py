"""Small random instances of the real Qwen-Image classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from tokenizers.pre_tokenizers import ByteLevel
from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Kind = Literal["text", "edit"]

SIDE = 64  # pixels of its images
WIDTH = 32  # of the language model, and so of an embedding
WIDE = 64  # where vLLM computes, too: its heads are 32 or more wide
MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
END, IMAGE = 256 + MARKS.index("<|im_end|>"), 256 + MARKS.index("<|image_pad|>")
RELEASED = {
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "shift_terminal": 0.02,
    "time_shift_type": "exponential",
}


def build_tokenizer() -> Qwen2Tokenizer:
    """A byte is a token; marks are found anywhere."""
    symbols = sorted(ByteLevel.alphabet())
    vocabulary = {one: index for index, one in enumerate((*symbols, *MARKS))}
    return Qwen2Tokenizer(
        vocab=vocabulary, merges=[], extra_special_tokens=list(MARKS[1:]), padding_side="right"
    )


def build_processor() -> Qwen2VLProcessor:
    """With images of 56 x 56 pixels and more; 4 tokens are the fewest of an image."""
    return Qwen2VLProcessor(
        image_processor=Qwen2VLImageProcessorPil(),
        tokenizer=build_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(),
    )


def build_encoder(seed: int = 3, width: int = WIDTH) -> Qwen2_5_VLForConditionalGeneration:
    """In eval mode, weights large enough for distributions that are not flat."""
    heads, sections = {WIDTH: (4, [1, 1, 2]), WIDE: (2, [4, 6, 6])}[width]
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 256 + len(MARKS),
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": sections,
            },
            "bos_token_id": None,
            "eos_token_id": END,
            "pad_token_id": 256,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": width,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        },
        image_token_id=IMAGE,
        video_token_id=256 + MARKS.index("<|video_pad|>"),
        vision_start_token_id=256 + MARKS.index("<|vision_start|>"),
        vision_end_token_id=256 + MARKS.index("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
        _widen(model)
        nn.init.normal_(model.model.language_model.embed_tokens.weight)
    return model.eval()


def build_transformer(seed: int = 4, width: int = WIDTH) -> QwenImageTransformer2DModel:
    """Weights so large that the last token of a text is worth tens of grey levels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=64,
            out_channels=16,
            num_layers=2,
            attention_head_dim=32,
            num_attention_heads=2,
            joint_attention_dim=width,
            axes_dims_rope=(8, 12, 12),
        )
        _widen(transformer, gain=2.0)
    return transformer.eval()


def build_autoencoder(seed: int = 5) -> AutoencoderKLQwenImage:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        autoencoder = AutoencoderKLQwenImage(
            base_dim=16,
            z_dim=16,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            attn_scales=[],
            temperal_downsample=[False, True, True],
        )
        for part in (autoencoder.encoder, autoencoder.decoder):
            part.conv_out.weight.data *= 4  # contrast
    return autoencoder.eval()


def build_pipeline(
    kind: Kind = "text", seed: int = 3, width: int = WIDTH
) -> QwenImagePipeline | QwenImageEditPlusPipeline:
    """A pipeline whose constant of how many tokens to drop fits its tokenizer."""
    processor = build_processor()
    parts = {
        "scheduler": FlowMatchEulerDiscreteScheduler(**RELEASED),
        "vae": build_autoencoder(),
        "text_encoder": build_encoder(seed, width),
        "tokenizer": processor.tokenizer,
        "transformer": build_transformer(width=width),
    }
    if kind == "text":
        pipeline = QwenImagePipeline(**parts)
    else:
        pipeline = QwenImageEditPlusPipeline(**parts, processor=processor)
    before = pipeline.prompt_template_encode.split("{}")[0]
    pipeline.prompt_template_encode_start_idx = len(processor.tokenizer(before)["input_ids"])
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def save_pipeline(folder: Path, kind: Kind = "text", seed: int = 3, width: int = WIDTH) -> Path:
    """A pipeline's directory, as diffusers loads it."""
    build_pipeline(kind, seed, width).save_pretrained(folder)
    return folder


def _widen(model: nn.Module, gain: float = 1.0) -> None:
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=gain * parameter[0].numel() ** -0.5)
