"""What the files of a Qwen-Image pipeline say: whether it is one, and how large its parts are.

Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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

Kind = Literal["text", "edit"]

INDEX = "model_index.json"
KINDS: dict[str, Kind] = {"QwenImagePipeline": "text", "QwenImageEditPlusPipeline": "edit"}
CLASSES = {
    "text_encoder": "Qwen2_5_VLForConditionalGeneration",
    "tokenizer": "Qwen2Tokenizer",
    "transformer": "QwenImageTransformer2DModel",
    "vae": "AutoencoderKLQwenImage",
    "scheduler": "FlowMatchEulerDiscreteScheduler",
}
PROCESSOR = {"processor": ("Qwen2VLProcessor", "Qwen2_5_VLProcessor")}
PUBLISHED_SIDE = 1024  # pixels
_V1 = "QwenImageEditPipeline"
LANGUAGE_MODEL, VISION = "model.language_model.", "model.visual."
_TEXT_HEAD = "lm_head.weight"
_LAYER = re.compile(re.escape(LANGUAGE_MODEL) + r"layers\.(\d+)\.")
_BLOCK = re.compile(r"transformer_blocks\.(\d+)\.")


@dataclass(frozen=True)
class PainterFacts:
    """Sizes of the frozen part that makes images.

    Attributes:
        transformer_parameters: of the transformer; `layers` and `width` are its.
        vae_parameters: of the autoencoder.
        stored_bytes: of both.
        text_width: values of one token that it is conditioned with.
        image_tokens: of one image, as the transformer denoises it.
        pixels: of one image.
        vae_channels: of the autoencoder's widest activation at the image's full size.
    """

    transformer_parameters: int
    vae_parameters: int
    stored_bytes: int
    layers: int
    width: int
    text_width: int
    image_tokens: int
    pixels: int
    vae_channels: int


@dataclass(frozen=True, kw_only=True)
class QwenFacts(LanguageFacts):
    """Sizes of a pipeline for what a configuration trains and asks for.

    `parameters` are those of the language model and its text head; `layers` and `width` are its.

    Attributes:
        kind: text to image, or edits.
        vision_parameters: of the tower that sees source images; never trained.
    """

    kind: Kind
    painter: PainterFacts
    vision_parameters: int


def read_qwen(root: Path, config: RunConfig) -> QwenFacts:
    """Read the pipeline directory `root`.

    Raises ConfigError naming the file, and the key or the tensor, that is missing or not what it
    should be, or policy.resolution where the model has no place for such images.
    """
    kind = pipeline_kind(root)
    require_shifting(root)
    encoder = _as_loaded(_tensors(root / "text_encoder"))
    painter = _painter(root, config)
    return qwen_facts(encoder, painter, kind, config, str(root))


def pipeline_kind(root: Path) -> Kind:
    """Which pipeline a directory holds.

    Raises ConfigError where it is none of these, or one of its parts is of another class.
    """
    file = root / INDEX
    if not file.is_file():
        raise ConfigError(f"{root}: no {INDEX}: not a pipeline directory")
    index = read_json(file)
    name = index.get("_class_name")
    if name not in KINDS:
        raise ConfigError(
            f"{file}: _class_name is {name}; policies of Qwen-Image are {' and '.join(KINDS)}"
            + (": v1 of the edit model, take Qwen/Qwen-Image-Edit-2509" if name == _V1 else "")
        )
    kind = KINDS[name]
    wanted: dict[str, tuple[str, ...]] = {part: (one,) for part, one in CLASSES.items()}
    for part, classes in (wanted | (PROCESSOR if kind == "edit" else {})).items():
        found = _class_of(index.get(part))
        if found is None:
            raise ConfigError(
                f"{file}: has no {part}, which {name} needs; take that folder from the published "
                "pipeline"
            )
        if found.removesuffix("Fast") not in classes:
            raise ConfigError(f"{file}: {part} is {found}, not {' or '.join(classes)}")
    return kind


def _class_of(entry: Any) -> str | None:
    """Of a part: [library, class], both null where it was saved without."""
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], str):
        return None
    return entry[1]


def require_shifting(root: Path) -> None:
    """Raises ConfigError where the scheduler would ignore the shift that the pipeline works out
    for an image's size: it does so without a word."""
    file = root / "scheduler" / "scheduler_config.json"
    if read_json(file).get("use_dynamic_shifting") is not True:
        raise ConfigError(
            f"{file}: use_dynamic_shifting is not true, so noise levels would not be shifted for "
            "the size of the images; set it to true, with the other values of the published file"
        )


def qwen_facts(
    encoder: Tensors, painter: PainterFacts, kind: Kind, config: RunConfig, where: str
) -> QwenFacts:
    """Sizes by the encoder's tensors, under the names that the loaded model has."""
    own = below(encoder, LANGUAGE_MODEL, _TEXT_HEAD)
    vision = below(encoder, VISION)
    first = f"{LANGUAGE_MODEL}layers.0."
    vocabulary, width = _shape(own, f"{LANGUAGE_MODEL}embed_tokens.weight", where)
    if width != painter.text_width:
        raise ConfigError(
            f"{where}: its text_encoder is {width} wide, and its transformer is conditioned with "
            f"{painter.text_width} values a token"
        )
    linear = modules(_strictly_inside(own))
    return QwenFacts(
        parameters=count(own),
        adapter_parameters=adapter_parameters(linear, config.policy.lora),
        unknown_targets=unknown_targets(linear, config.policy.lora),
        layers=len({match[1] for name in own if (match := _LAYER.match(name))}),
        width=width,
        frozen_bytes=stored_bytes(vision) + painter.stored_bytes,
        kind=kind,
        painter=painter,
        vision_parameters=count(vision),
        vocabulary=vocabulary,
        key_value_width=_shape(own, f"{first}self_attn.k_proj.weight", where)[0],
        feed_forward=_shape(own, f"{first}mlp.gate_proj.weight", where)[0],
    )


def _strictly_inside(tensors: Tensors) -> Tensors:
    """Of the language model's layers, by their names in it: a LoRA adapts nothing else."""
    layers = below(tensors, f"{LANGUAGE_MODEL}layers.")
    return {name.removeprefix(LANGUAGE_MODEL): one for name, one in layers.items()}


def _painter(root: Path, config: RunConfig) -> PainterFacts:
    transformer, vae = _tensors(root / "transformer"), _tensors(root / "vae")
    said = read_json(root / "transformer" / "config.json")
    folds = read_json(root / "vae" / "config.json")
    try:
        factor = 2 ** len(folds["temperal_downsample"])  # so spelt in the library
        side = config.policy.resolution or PUBLISHED_SIDE
        patch = factor * int(said["patch_size"])
        return PainterFacts(
            transformer_parameters=count(transformer),
            vae_parameters=count(vae),
            stored_bytes=stored_bytes(transformer) + stored_bytes(vae),
            layers=len({match[1] for name in transformer if (match := _BLOCK.match(name))}),
            width=int(said["num_attention_heads"]) * int(said["attention_head_dim"]),
            text_width=int(said["joint_attention_dim"]),
            image_tokens=(fitting(side, patch) // patch) ** 2,
            pixels=side**2,
            vae_channels=int(folds["base_dim"]) * int(folds["dim_mult"][:2][-1]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{root}/transformer/config.json or vae/config.json: not those of a Qwen-Image "
            f"pipeline: {error!r}"
        ) from error


def fitting(side: int, patch: int) -> int:
    """The side of square images, which are made of patches.

    Raises ConfigError naming policy.resolution where they are not.
    """
    if side % patch:
        raise ConfigError(
            f"policy.resolution: {side} pixels; this model wants a multiple of {patch}"
        )
    return side


def _as_loaded(tensors: Tensors) -> dict[str, Stored]:
    """Under the names that the loaded encoder has."""
    return {loaded_name(name): one for name, one in tensors.items()}


def loaded_name(name: str) -> str:
    """What the loaded encoder calls a tensor of a file: those keep the names of transformers 4."""
    if name.startswith("visual."):
        return f"model.{name}"
    if name.startswith("model.") and not name.startswith((LANGUAGE_MODEL, VISION)):
        return LANGUAGE_MODEL + name.removeprefix("model.")
    return name


def _shape(tensors: Tensors, name: str, where: str) -> tuple[int, ...]:
    found = tensors.get(name)
    if found is None or len(found.shape) != 2:
        has = "no tensor" if found is None else f"a tensor of shape {list(found.shape)} as"
        raise ConfigError(
            f"{where}/text_encoder: its safetensors have {has} {name}: not a Qwen2.5-VL model"
        )
    return found.shape


def _tensors(folder: Path) -> Tensors:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{folder}: no safetensors: no weights as a pipeline saves them")
    return tensors_in(files)
