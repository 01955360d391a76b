"""Small random instances of the real Janus classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit
from torch import Tensor
from transformers import (
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusProcessor,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    StaticCache,
)
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

from atelier.policies.janus.module import CACHE_ARGUMENT

MARKS = ("<pad>", "<bos>", "<eos>", "<boi>", "<eoi>", "<image>", "<unk>")
WORDS = ("Yes", "No", "because", "a", "red", "blue", "circle", "square", "and", "<|User|>:")


@dataclass(frozen=True)
class Sizes:
    """Defaults: 16 tokens of 64 x 64 pixels, 64 wide."""

    width: int = 64
    side: int = 4
    patch: int = 16
    codes: int = 96
    vision_width: int = 32
    key_value_heads: int = 4
    tied: bool = False

    @property
    def pixels(self) -> int:
        return self.side * self.patch


WIDE = Sizes(width=96, side=8, patch=8, codes=80, vision_width=48, key_value_heads=2)


def build_model(sizes: Sizes | None = None, seed: int = 3) -> JanusForConditionalGeneration:
    """In eval mode, weights large enough for distributions that are not flat."""
    sizes = sizes or Sizes()
    levels = sizes.patch.bit_length()
    config = JanusConfig(
        text_config=LlamaConfig(
            vocab_size=64,
            hidden_size=sizes.width,
            intermediate_size=2 * sizes.width,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=sizes.key_value_heads,
            max_position_embeddings=512,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=sizes.tied,
        ),
        vision_config=JanusVisionConfig(
            hidden_size=sizes.vision_width,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=sizes.pixels,
            patch_size=sizes.patch,
            mlp_ratio=2.0,
            projection_dim=sizes.width,
            num_image_tokens=sizes.side**2,
        ),
        vq_config=JanusVQVAEConfig(
            embed_dim=8,
            num_embeddings=sizes.codes,
            latent_channels=32,
            base_channels=32,
            channel_multiplier=[1] * levels,
            num_res_blocks=1,
            projection_dim=sizes.width,
            image_token_embed_dim=sizes.width,
        ),
        image_token_id=5,
        tie_word_embeddings=sizes.tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = JanusForConditionalGeneration._from_config(config, attn_implementation="sdpa")
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "vqmodel" not in name:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        # Embeddings as large as what layers add to them.
        for table in (model.model.language_model.embed_tokens, model.model.generation_embeddings):
            torch.nn.init.normal_(table.weight, std=1 if not sizes.tied else 0.2)
        # Guidance multiplies what float32 rounds: not so sharp that 1e-5 is less than that.
        model.model.generation_head.vision_head.weight.data *= 0.7
    model.generation_config = GenerationConfig(
        bos_token_id=1, eos_token_id=2, pad_token_id=0, generation_kwargs={"boi_token_id": 3}
    )
    return model.eval()


def build_processor(sizes: Sizes | None = None) -> JanusProcessor:
    """A word is a token; marks are found anywhere."""
    sizes = sizes or Sizes()
    vocabulary = {word: index for index, word in enumerate((*MARKS, *WORDS))}
    core = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = Sequence([WhitespaceSplit(), Split("<|Assistant|>:", "isolated")])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        extra_special_tokens={
            "image_token": "<image>",
            "boi_token": "<boi>",
            "eoi_token": "<eoi>",
        },
    )
    return JanusProcessor(
        image_processor=JanusImageProcessorPil(
            size={"height": sizes.pixels, "width": sizes.pixels},
            image_mean=[0.5] * 3,
            image_std=[0.5] * 3,
        ),
        tokenizer=tokenizer,
        num_image_tokens=sizes.side**2,
    )


def likeliest_image(
    model: JanusForConditionalGeneration, tokens: Tensor, mask: Tensor, guidance_scale: float
) -> Tensor:
    """Image codes by the library's own generation, with a cache that 5.17 fails to make."""
    places = tokens.shape[1] + model.config.vision_config.num_image_tokens
    cache = StaticCache(config=model.config.text_config, max_cache_len=places)
    return model.generate(
        tokens,
        attention_mask=mask.long(),
        generation_mode="image",
        guidance_scale=guidance_scale,
        do_sample=False,
        **{CACHE_ARGUMENT: cache},
    )
