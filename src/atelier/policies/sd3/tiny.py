"""Tiny SD3: the parts of the embedded `StableDiffusion3Pipeline`, before pre-training.

Every part is an instance of the class that the real checkpoint uses, with one exception: the third
text encoder. The plain pipeline call asks it for 256 tokens (`max_sequence_length`), unmasked, and
without one diffusers appends 256 zero vectors: six times the work for nothing. A funnel
transformer, which halves its sequence after every block, shrinks them to one; its last layer norm
is zero, so that this one token is the zero vector a dropped T5 gives. Any `max_sequence_length` up
to 512 therefore means the same: 16 CLIP tokens and a zero, 17 text tokens in all.

The two CLIP encoders are frozen codes and not language models. SD3 reads the last but one hidden
state, which with one layer is the token embedding plus the position embedding: here random unit
vectors in dimensions of their own. Prompt words are one token each, everything else is spelled.
"""

import string
from dataclasses import dataclass

import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
)
from tokenizers import AddedToken
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    FunnelBaseModel,
    FunnelConfig,
)

from atelier.data.scenes import VOCABULARY

END_OF_WORD = "</w>"
BEGIN, END, UNKNOWN = "<|startoftext|>", "<|endoftext|>", "<|unknown|>"
CHARACTERS = string.ascii_lowercase + string.digits + "\"'.,:;!?-"
FUNNEL_HALVINGS = 9  # 2**9 = 512 tokens, the most that the pipeline accepts, become one


@dataclass(frozen=True)
class TinySD3Sizes:
    """What decides the model's size and cost. Defaults: 2.1 M transformer, 0.2 M VAE parameters."""

    image_size: int = 64
    latent_channels: int = 4
    vae_channels: tuple[int, ...] = (16, 24, 32)
    layers: int = 4
    heads: int = 5
    head_width: int = 24
    patch_size: int = 4
    clip_width: int = 64
    clip_tokens: int = 16
    shift: float = 1.0

    @property
    def latent_size(self) -> int:
        return self.image_size // 2 ** (len(self.vae_channels) - 1)

    @property
    def text_width(self) -> int:
        return 2 * self.clip_width


def build_pipeline(
    sizes: TinySD3Sizes | None = None, vae: AutoencoderKL | None = None, seed: int = 0
) -> StableDiffusion3Pipeline:
    """The whole pipeline in float32 and eval mode, a pure function of sizes, `vae` and seed.

    `vae` None gives an untrained one. Text encoders are final; VAE and transformer need training.
    """
    sizes = sizes or TinySD3Sizes()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokenizer = build_tokenizer(sizes)
        pipeline = StableDiffusion3Pipeline(
            transformer=build_transformer(sizes),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=sizes.shift),
            vae=vae or build_vae(sizes),
            text_encoder=build_text_encoder(tokenizer, sizes, seed=1),
            tokenizer=tokenizer,
            text_encoder_2=build_text_encoder(tokenizer, sizes, seed=2),
            tokenizer_2=tokenizer,
            text_encoder_3=build_null_encoder(tokenizer, sizes),
            tokenizer_3=tokenizer,
        )
    for part in pipeline.components.values():
        if isinstance(part, nn.Module):
            part.eval()
    return pipeline


def build_tokenizer(sizes: TinySD3Sizes) -> CLIPTokenizer:
    """A character-level CLIP tokenizer in which each lower-case prompt word is one token.

    CLIP lower-cases text, but only after added tokens have been found in the raw text: `word` is
    one token, `"WORD"` is spelled.
    """
    specials = (BEGIN, END, UNKNOWN)
    pieces = (*specials, *CHARACTERS, *(letter + END_OF_WORD for letter in CHARACTERS))
    tokenizer = CLIPTokenizer(
        vocab={piece: index for index, piece in enumerate(pieces)},
        merges=[],
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        unk_token=UNKNOWN,
        model_max_length=sizes.clip_tokens,
    )
    tokenizer.add_tokens(
        [AddedToken(word, single_word=True, normalized=False) for word in VOCABULARY]
    )
    return tokenizer


def build_text_encoder(
    tokenizer: CLIPTokenizer, sizes: TinySD3Sizes, seed: int
) -> CLIPTextModelWithProjection:
    """A frozen code: hidden state -2 is [token, position], the pooled output their mean, projected.

    Entries of both have unit variance. A letter at the end of a word shares three quarters of its
    variance with the same letter elsewhere.
    """
    width = sizes.clip_width
    model = CLIPTextModelWithProjection(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=width,
            projection_dim=width,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=sizes.clip_tokens,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for name, value in weights.items():
        if name.endswith("embeddings.token_embedding.weight"):
            value[:, : width - sizes.clip_tokens] = _token_code(
                tokenizer, width - sizes.clip_tokens, generator
            )
        elif name.endswith("embeddings.position_embedding.weight"):
            # One dimension a position, scaled to unit variance over the block.
            value[:, width - sizes.clip_tokens :] = (
                torch.eye(sizes.clip_tokens) * sizes.clip_tokens**0.5
            )
        elif name.endswith(("v_proj.weight", "text_projection.weight")):
            value.copy_(_rotation(width, generator))
        elif name.endswith("out_proj.weight"):
            # Queries and keys stay zero: attention is the mean over the prompt. The gain undoes
            # what averaging some twelve independent tokens takes from the variance.
            value.copy_(4 * _rotation(width, generator))
        elif name.endswith("layer_norm1.weight") or name.endswith("final_layer_norm.weight"):
            value.fill_(1)
        elif name.endswith("position_ids"):
            value.copy_(model.state_dict()[name])
    model.load_state_dict(weights)
    return model.requires_grad_(False)


def build_null_encoder(tokenizer: CLIPTokenizer, sizes: TinySD3Sizes) -> FunnelBaseModel:
    """The third text encoder: up to 512 tokens in, one zero vector of `text_width` out."""
    model = FunnelBaseModel(
        FunnelConfig(
            vocab_size=len(tokenizer),
            d_model=sizes.text_width,
            n_head=1,
            d_head=2,
            d_inner=2,
            # No layer before the first halving, and keys pooled too: attention starts at 128.
            block_sizes=[0] + [1] * FUNNEL_HALVINGS,
            pool_q_only=False,
            attention_type="factorized",
            separate_cls=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        )
    )
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model.requires_grad_(False)


def build_vae(sizes: TinySD3Sizes) -> AutoencoderKL:
    """The autoencoder: [N, 3, 64, 64] in [-1, 1] to [N, 4, 16, 16], no attention, no quant conv."""
    blocks = len(sizes.vae_channels)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        block_out_channels=sizes.vae_channels,
        layers_per_block=1,
        latent_channels=sizes.latent_channels,
        norm_num_groups=8,
        sample_size=sizes.image_size,
        scaling_factor=1.0,
        shift_factor=0.0,
        force_upcast=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
    )


def build_transformer(sizes: TinySD3Sizes) -> SD3Transformer2DModel:
    """The MM-DiT with SD3.5's query-key norm; modulation and output start at zero, as in DiT."""
    model = SD3Transformer2DModel(
        sample_size=sizes.latent_size,
        patch_size=sizes.patch_size,
        in_channels=sizes.latent_channels,
        out_channels=sizes.latent_channels,
        num_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        attention_head_dim=sizes.head_width,
        joint_attention_dim=sizes.text_width,
        caption_projection_dim=sizes.heads * sizes.head_width,
        pooled_projection_dim=sizes.text_width,
        # The position buffer is saved with the weights: keep it at the picture's own grid.
        pos_embed_max_size=sizes.latent_size // sizes.patch_size,
        qk_norm="rms_norm",
    )
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
            if name == "proj_out" or name.endswith(("norm1.linear", "norm1_context.linear")):
                nn.init.zeros_(module.weight)
    nn.init.xavier_uniform_(model.pos_embed.proj.weight.view(model.pos_embed.proj.out_channels, -1))
    return model


@torch.no_grad()
def encode_prompts(pipeline: StableDiffusion3Pipeline, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Embeddings [N, 17, text_width] and pooled [N, text_width], as the plain call has them."""
    embeddings, _, pooled, _ = pipeline.encode_prompt(
        prompts, None, None, do_classifier_free_guidance=False
    )
    return embeddings, pooled


def _token_code(tokenizer: CLIPTokenizer, width: int, generator: torch.Generator) -> Tensor:
    code = torch.randn(len(tokenizer), width, generator=generator)
    vocabulary = tokenizer.get_vocab()
    for letter in CHARACTERS:
        final = vocabulary[letter + END_OF_WORD]
        code[final] = 0.75**0.5 * code[vocabulary[letter]] + 0.5 * code[final]
    return code


def _rotation(width: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
