"""What the files of a Stable Diffusion 3 pipeline say about its size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atelier.config.facts.base import ModelFacts
from atelier.config.facts.files import Tensors, count, read_json, stored_bytes, tensors_in
from atelier.config.facts.targets import adapter_parameters, modules, unknown_targets
from atelier.config.image_size import latent_side, vae_factor
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import LORA_TARGETS
from atelier.errors import ConfigError

_TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
CLIP_TOKENS = 77


@dataclass(frozen=True, kw_only=True)
class SD3Facts(ModelFacts):
    """Sizes of a pipeline for the images a configuration asks for.

    `parameters`, `layers` and `width` are those of the transformer.
    """

    text_parameters: int  # of all text encoders
    vae_parameters: int
    latent_values: int  # channels x height x width
    image_tokens: int
    text_tokens: int
    text_width: int  # values of one token's embedding
    pooled_width: int
    pixels: int  # of one image
    vae_channels: int  # of the widest activation at the image's full size

    @property
    def tokens(self) -> int:
        """Image and text tokens of one image."""
        return self.image_tokens + self.text_tokens

    @property
    def embedding_values(self) -> int:
        """Values of one prompt's embeddings."""
        return self.text_tokens * self.text_width + self.pooled_width

    @property
    def condition_values(self) -> int:
        """Values of all that an image is painted from."""
        return self.embedding_values


def read_sd3(root: Path, config: RunConfig) -> SD3Facts:
    """Read the pipeline directory `root`.

    Raises ConfigError naming the file that is missing or not what it should be, or
    policy.resolution where the model has no place for such images.
    """
    lora = config.policy.lora
    transformer = weights_of(root / "transformer")
    linear = modules(transformer)
    encoders = [weights_of(root / part) for part in _TEXT_ENCODERS]
    vae = weights_of(root / "vae")
    return SD3Facts(
        parameters=count(transformer),
        adapter_parameters=adapter_parameters(linear, lora),
        # An SD3 of one block has no attn.to_add_out.
        unknown_targets=unknown_targets(linear, lora, may_lack=LORA_TARGETS["sd3"]),
        text_parameters=sum(count(one) for one in encoders),
        vae_parameters=count(vae),
        frozen_bytes=sum(stored_bytes(one) for one in (*encoders, vae)),
        text_tokens=_text_tokens(root, config.policy.max_sequence_length),
        **painted_shape(root, config),
    )


def painted_shape(root: Path, config: RunConfig) -> dict[str, int]:
    """What the configurations of transformer and autoencoder say."""
    transformer = read_json(root / "transformer" / "config.json")
    vae = read_json(root / "vae" / "config.json")
    try:
        side = latent_side(config.policy.resolution, transformer, vae)
        channels = [int(one) for one in vae["block_out_channels"]]
        return {
            "latent_values": int(transformer["in_channels"]) * side**2,
            "image_tokens": (side // int(transformer["patch_size"])) ** 2,
            "text_width": int(transformer["joint_attention_dim"]),
            "pooled_width": int(transformer["pooled_projection_dim"]),
            "width": int(transformer["num_attention_heads"])
            * int(transformer["attention_head_dim"]),
            "layers": int(transformer["num_layers"]),
            "pixels": (side * vae_factor(vae)) ** 2,
            "vae_channels": channels[min(1, len(channels) - 1)],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{config.policy.path}/transformer/config.json or vae/config.json: not those of a "
            f"Stable Diffusion 3 pipeline: {error!r}"
        ) from error


def _text_tokens(root: Path, t5_tokens: int) -> int:
    """CLIP's length and T5's, which SD3 lays one behind the other. Without a T5 it lays as many
    zeros there; the embedded model's funnel shrinks them to one (policies/sd3/tiny.py)."""
    third = read_json(root / "model_index.json").get("text_encoder_3") or []
    if "FunnelBaseModel" in third:
        t5_tokens = 1
    file = root / "tokenizer" / "tokenizer_config.json"
    length = read_json(file).get("model_max_length") if file.is_file() else None
    return (length if isinstance(length, int) and length < 10_000 else CLIP_TOKENS) + t5_tokens


def weights_of(folder: Path) -> Tensors:
    """Of all the folder's files, rounded twins aside; none where there is no such folder."""
    files = sorted(folder.glob("*.safetensors"))
    full = [file for file in files if ".fp16" not in file.name]
    return tensors_in(full or files)
