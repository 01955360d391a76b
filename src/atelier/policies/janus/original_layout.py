"""Names of Janus' weights: the layout of the original code, and that of transformers.

`ORIGINAL <-> TRANSFORMERS`, with {i}, {j} indices and {rest} whatever follows:

    language_model.model.{rest}                  model.language_model.{rest}
    language_model.lm_head.weight                lm_head.weight
    gen_embed, gen_head, gen_aligner, aligner    model.generation_*, model.aligner
    gen_vision_model.*                           model.vqmodel.*: conv_blocks are down and up, res
                                                 are block, mid.{0,1,2} are block_1, attn_1, block_2
    vision_model.vision_tower.*                  model.vision_model.*: blocks are encoder.layers

Tensors are the same but for two of the vision tower: one qkv there is three projections here, and
the position table has a leading axis of 1. The original also holds what nobody computes with: the
pooling head of the vision tower, statistics of the codebook and tables of rotary embeddings; here
they have no place, and `to_original` puts them back where it is given them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import Tensor

_LAYERS = 8  # of an aligner: more than any has
WRAPPERS = ("module.", "model.")
_OWN = "model.vqmodel."  # of transformers' layout, unwrapped

_MLP = [("fc1", 0), *((f"hidden_layers.{i}", 2 * (i + 1)) for i in range(_LAYERS))]
_TOWER, _ENCODER = "vision_model.vision_tower.", "model.vision_model."
_BLOCK, _LAYER = f"{_TOWER}blocks.{{i}}.", f"{_ENCODER}encoder.layers.{{i}}."


def _codec(half: str, levels: str) -> list[tuple[str, str]]:
    """Names of the encoder or the decoder of the image tokenizer."""
    original, here = f"gen_vision_model.{half}.", f"model.vqmodel.{half}."
    blocks, stages = f"{original}conv_blocks.{{i}}.", f"{here}{levels}.{{i}}."
    sampling = f"{levels}sample"
    return [
        (f"{blocks}res.{{j}}.{{rest}}", f"{stages}block.{{j}}.{{rest}}"),
        (f"{blocks}attn.{{j}}.{{rest}}", f"{stages}attn.{{j}}.{{rest}}"),
        (f"{blocks}{sampling}.{{rest}}", f"{stages}{sampling}.{{rest}}"),
        (f"{original}mid.0.{{rest}}", f"{here}mid.block_1.{{rest}}"),
        (f"{original}mid.1.{{rest}}", f"{here}mid.attn_1.{{rest}}"),
        (f"{original}mid.2.{{rest}}", f"{here}mid.block_2.{{rest}}"),
        *(
            (f"{original}{one}.{{rest}}", f"{here}{one}.{{rest}}")
            for one in ("conv_in", "norm_out", "conv_out")
        ),
    ]


PAIRS: tuple[tuple[str, str], ...] = (
    ("language_model.model.{rest}", "model.language_model.{rest}"),
    ("language_model.lm_head.weight", "lm_head.weight"),
    ("gen_embed.weight", "model.generation_embeddings.weight"),
    *(
        (f"{theirs}.layers.{number}.{{rest}}", f"model.{ours}.{name}.{{rest}}")
        for theirs, ours in (("gen_aligner", "generation_aligner"), ("aligner", "aligner"))
        for name, number in _MLP
    ),
    ("gen_head.output_mlp_projector.{rest}", "model.generation_head.proj_out.{rest}"),
    ("gen_head.vision_head.{rest}", "model.generation_head.vision_head.{rest}"),
    *_codec("encoder", "down"),
    *_codec("decoder", "up"),
    *(
        (f"gen_vision_model.{one}.{{rest}}", f"model.vqmodel.{one}.{{rest}}")
        for one in ("quantize.embedding", "quant_conv", "post_quant_conv")
    ),
    (f"{_TOWER}pos_embed", f"{_ENCODER}embeddings.position_embedding.weight"),
    (f"{_TOWER}patch_embed.proj.{{rest}}", f"{_ENCODER}embeddings.patch_embedding.{{rest}}"),
    (f"{_TOWER}norm.{{rest}}", f"{_ENCODER}post_layernorm.{{rest}}"),
    (f"{_BLOCK}norm1.{{rest}}", f"{_LAYER}layer_norm1.{{rest}}"),
    (f"{_BLOCK}norm2.{{rest}}", f"{_LAYER}layer_norm2.{{rest}}"),
    (f"{_BLOCK}attn.qkv.{{rest}}", f"{_LAYER}self_attn.qkv.{{rest}}"),  # in three, see below
    (f"{_BLOCK}attn.q_norm.{{rest}}", f"{_LAYER}self_attn.q_norm.{{rest}}"),
    (f"{_BLOCK}attn.k_norm.{{rest}}", f"{_LAYER}self_attn.k_norm.{{rest}}"),
    (f"{_BLOCK}attn.proj.{{rest}}", f"{_LAYER}self_attn.projection_layer.{{rest}}"),
    (f"{_BLOCK}mlp.{{rest}}", f"{_LAYER}mlp.{{rest}}"),
)
UNUSED = re.compile(
    r"vision_model\.vision_tower\.attn_pool\..+"
    r"|gen_vision_model\.quantize\.codebook_used"
    r"|language_model\.model\..*rotary_emb\.inv_freq"
)
_POSITIONS = f"{_ENCODER}embeddings.position_embedding.weight"
_QKV = re.compile(r"(model\.vision_model\..*self_attn\.)([qkv])_proj(\..+)")
_MERGED = re.compile(r"(model\.vision_model\..*self_attn\.)qkv(\..+)")


def is_original(names: Iterable[str]) -> bool:
    """Whether weights of these names are in the original layout."""
    return any(name.startswith(("language_model.", "gen_vision_model.")) for name in names)


def in_transformers_layout(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of either layout in that of transformers, without what training code puts before all
    of their names.

    Raises:
        KeyError, ValueError: see `from_original`.
    """
    found = dict(weights)
    while prefix := _wrapper(found):
        found = {name.removeprefix(prefix): value for name, value in found.items()}
    return from_original(found) if is_original(found) else found


def _wrapper(names: Collection[str]) -> str | None:
    """What stands before all names. `model.` is also how most of transformers' own begin."""
    for prefix in WRAPPERS:
        if names and all(name.startswith(prefix) for name in names):
            return None if any(name.startswith(_OWN) for name in names) else prefix
    return None


def from_original(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights in the layout of transformers; UNUSED ones are left out. Tensors are not copied.

    Raises:
        KeyError: a name is of no known part.
        ValueError: a qkv is no three projections.
    """
    found: dict[str, Tensor] = {}
    for name, value in weights.items():
        if UNUSED.fullmatch(name):
            continue
        here = _TO_TRANSFORMERS(name)
        merged = _MERGED.fullmatch(here)
        if merged:
            before, after = merged.groups()
            if value.ndim == 0 or len(value) % 3:
                raise ValueError(f"{name} {list(value.shape)} is not three projections of one size")
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                found[f"{before}{letter}_proj{after}"] = part
        else:
            found[here] = value.squeeze(0) if here == _POSITIONS else value
    return found


def to_original(
    weights: Mapping[str, Tensor], unused: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The inverse of `from_original`.

    Args:
        unused: weights in the original layout, of which the UNUSED ones are taken over.

    Raises:
        KeyError: a name is of no known part.
    """
    found = {name: value for name, value in (unused or {}).items() if UNUSED.fullmatch(name)}
    for name, value in weights.items():
        part = _QKV.fullmatch(name)
        if part is None:
            found[_TO_ORIGINAL(name)] = value[None] if name == _POSITIONS else value
        elif part[2] == "q":
            parts = [weights[f"{part[1]}{letter}_proj{part[3]}"] for letter in "qkv"]
            found[_TO_ORIGINAL(f"{part[1]}qkv{part[3]}")] = torch.cat(parts)
    return found


def _renaming(pairs: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """What turns names of the left form into those of the right one."""
    rules = [(re.compile(_pattern(left)), right) for left, right in pairs]

    def rename(name: str) -> str:
        for pattern, template in rules:
            match = pattern.fullmatch(name)
            if match:
                return template.format(**match.groupdict())
        raise KeyError(f"{name} is no weight of a Janus model")

    return rename


def _pattern(template: str) -> str:
    return (
        re.escape(template)
        .replace(r"\{i\}", r"(?P<i>\d+)")
        .replace(r"\{j\}", r"(?P<j>\d+)")
        .replace(r"\{rest\}", r"(?P<rest>.+)")
    )


_TO_TRANSFORMERS = _renaming(PAIRS)
_TO_ORIGINAL = _renaming((here, original) for original, here in PAIRS)
