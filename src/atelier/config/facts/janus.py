"""What the files of a Janus model say about its size.

All but the layout is read from the shapes of tensors: a config.json leaves out what is the default
of its class. What it does say has to agree with them. Source: FocusDiff and Janus-Pro-R1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atelier.config.facts.base import LanguageFacts
from atelier.config.facts.files import (
    Stored,
    Tensors,
    below,
    count,
    read_json,
    stored_bytes,
    tensors_in,
)
from atelier.config.facts.targets import adapter_parameters, modules, unknown_targets
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError
from atelier.weight_index import places_in

LANGUAGE_MODEL = "model.language_model."
VISION = ("model.vision_model.", "model.aligner.")
IMAGE_TOKENIZER = "model.vqmodel."
_TEXT_HEAD = "lm_head.weight"
_LAYER = re.compile(re.escape(LANGUAGE_MODEL) + r"layers\.(\d+)\.")
_UPSAMPLE = re.compile(re.escape(IMAGE_TOKENIZER) + r"decoder\.up\.(\d+)\.upsample\.conv\.weight")


@dataclass(frozen=True)
class ImageParts:
    """What sees images, and what makes them of tokens; never trained.

    Attributes:
        vision_parameters: of the vision tower and what aligns its features.
        tokenizer_parameters: of the image tokenizer.
        stored_bytes: of both.
        tokens: of an image.
        pixels: of an image.
        channels: of the image tokenizer's widest activation at the image's full size.
    """

    vision_parameters: int
    tokenizer_parameters: int
    stored_bytes: int
    tokens: int
    pixels: int
    channels: int


@dataclass(frozen=True, kw_only=True)
class JanusFacts(LanguageFacts):
    """Sizes of a Janus model.

    `parameters` are those of the language model, of both its heads and of what embeds image codes;
    `layers` and `width` are the language model's.

    Attributes:
        codebook: codes of images.
        positions: tokens of the longest row that it was made for; None where no file says it.
    """

    images: ImageParts
    codebook: int
    positions: int | None = None

    def merged_bytes(self, value: int) -> int:
        """All parts are in the same files, in one dtype."""
        frozen = self.images.vision_parameters + self.images.tokenizer_parameters
        return (self.parameters + frozen) * value


def read_janus(root: Path, config: RunConfig) -> JanusFacts:
    """Read the model directory `root`, in the layout of transformers.

    Raises ConfigError naming the file, and the tensor or the key, that is missing or not what it
    should be.
    """
    said = read_json(root / "config.json")
    tensors = _tensors(root)
    facts = janus_facts(tensors, _image_parts(tensors, str(root)), config, str(root))
    _require_agreement(root / "config.json", said, facts)
    return replace(facts, positions=_positions(root / "config.json", said))


def janus_facts(tensors: Tensors, images: ImageParts, config: RunConfig, where: str) -> JanusFacts:
    """Sizes by the tensors of all that is not frozen; others are not looked at."""
    frozen = (*VISION, IMAGE_TOKENIZER)
    own = {name: one for name, one in tensors.items() if not name.startswith(frozen)}
    first = f"{LANGUAGE_MODEL}layers.0."
    vocabulary, width = _shape(own, f"{LANGUAGE_MODEL}embed_tokens.weight", 2, where)
    head = {name: one for name, one in own.items() if name == _TEXT_HEAD}  # none where it is shared
    judges = config.rollout.kind == "introspect"
    linear = modules(_strictly_inside(own))
    return JanusFacts(
        parameters=count(own),
        # Nothing but answers gives the text head a gradient.
        untrained_parameters=0 if judges else count(head),
        adapter_parameters=adapter_parameters(linear, config.policy.lora),
        unknown_targets=unknown_targets(linear, config.policy.lora),
        layers=len({match[1] for name in own if (match := _LAYER.match(name))}),
        width=width,
        frozen_bytes=images.stored_bytes,
        images=images,
        vocabulary=vocabulary,
        codebook=_shape(own, "model.generation_embeddings.weight", 2, where)[0],
        key_value_width=_shape(own, f"{first}self_attn.k_proj.weight", 2, where)[0],
        feed_forward=_shape(own, f"{first}mlp.gate_proj.weight", 2, where)[0],
    )


def _strictly_inside(tensors: Tensors) -> Tensors:
    """Of the language model's layers, by their names in it: a LoRA adapts nothing else, though the
    vision tower has projections of the same names."""
    layers = below(tensors, f"{LANGUAGE_MODEL}layers.")
    return {name.removeprefix(LANGUAGE_MODEL): one for name, one in layers.items()}


def _image_parts(tensors: Tensors, where: str) -> ImageParts:
    vision, tokenizer = below(tensors, *VISION), below(tensors, IMAGE_TOKENIZER)
    embeddings = f"{VISION[0]}embeddings"
    tokens = _shape(vision, f"{embeddings}.position_embedding.weight", 2, where)[0]
    patch = _shape(vision, f"{embeddings}.patch_embedding.weight", 4, where)[-1]
    last = _shape(tokenizer, f"{IMAGE_TOKENIZER}decoder.conv_out.weight", 4, where)[1]
    # The last of the decoder's levels that doubles the side ends at the full one.
    doubling = {
        int(match[1]): one for name, one in tokenizer.items() if (match := _UPSAMPLE.match(name))
    }
    widest = max(doubling[max(doubling)].shape[0], last) if doubling else last
    return ImageParts(
        vision_parameters=count(vision),
        tokenizer_parameters=count(tokenizer),
        stored_bytes=stored_bytes(vision) + stored_bytes(tokenizer),
        tokens=tokens,
        pixels=tokens * patch**2,
        channels=widest,
    )


def _shape(tensors: Tensors, name: str, dimensions: int, where: str) -> tuple[int, ...]:
    found = tensors.get(name)
    if found is None or len(found.shape) != dimensions:
        has = "no tensor" if found is None else f"a tensor of shape {list(found.shape)} as"
        raise ConfigError(
            f"{where}: its safetensors have {has} {name}: not a Janus model in the layout of "
            "transformers"
        )
    return found.shape


def _positions(file: Path, said: dict[str, Any]) -> int | None:
    found = said.get("text_config", {}).get("max_position_embeddings")
    if found is not None and (not isinstance(found, int) or found < 1):
        raise ConfigError(
            f"{file}: text_config.max_position_embeddings is {found!r}, no number of tokens"
        )
    return found


def _require_agreement(file: Path, said: dict[str, Any], facts: JanusFacts) -> None:
    side = round(facts.images.pixels**0.5)
    found = {
        "text_config": {
            "hidden_size": facts.width,
            "num_hidden_layers": facts.layers,
            "intermediate_size": facts.feed_forward,
            "vocab_size": facts.vocabulary,
        },
        "vision_config": {"num_image_tokens": facts.images.tokens, "image_size": side},
        "vq_config": {"num_embeddings": facts.codebook},
    }
    for section, values in found.items():
        known = said.get(section, {})
        if not isinstance(known, dict):
            raise ConfigError(f"{file}: {section}: expected a JSON object")
        for key, value in values.items():
            if known.get(key, value) != value:
                raise ConfigError(
                    f"{file}: {section}.{key} is {known[key]}, and its tensors say {value}"
                )


def _tensors(root: Path) -> dict[str, Stored]:
    """Of the one file of weights, or of all that the index names."""
    single, index = root / "model.safetensors", root / "model.safetensors.index.json"
    if single.is_file():
        return tensors_in([single])
    if not index.is_file():
        raise ConfigError(
            f"{root}: neither model.safetensors nor model.safetensors.index.json: no weights as "
            "transformers saves them; load the model with it and save_pretrained() it here"
        )
    places = places_in(index)
    tensors = tensors_in(sorted({*places.values()}))
    if lacking := sorted(places.keys() - tensors.keys()):
        raise ConfigError(f"{index}: weight_map: {lacking[0]} is in none of its files")
    return tensors
