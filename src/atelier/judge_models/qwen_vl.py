"""The Qwen-VL families, computed in fewer and larger kernels.

- Transformers attends to one window after the other unless flash attention is installed: small
  kernels by the thousand, which a GPU waits for. Windows of one length are a batch here. Towers
  hand windows over by their bounds to implementations that have "flash" in their name.
- Patches are embedded by a convolution that moves by its own size: a linear map, and many times
  faster as one on a GPU.
- Positions are computed question by question, each of which would wait for the GPU several times.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from itertools import groupby, pairwise
from typing import Any

from torch import Tensor, cat, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

NAME = "flash_windows"
# Families that have such towers.
FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def quicken(model: PreTrainedModel) -> None:
    """Make the vision tower of a model of FAMILIES faster; others stay as they are."""
    if model.config.model_type in FAMILIES:
        AttentionInterface.register(NAME, attention)
        model.set_attn_implementation({"vision_config": NAME})
        embedding = model.get_submodule("model.visual.patch_embed")
        convolution = embedding.get_submodule("proj")
        assert isinstance(convolution, nn.Conv3d)  # as every family has it
        embedding.proj = LinearPatches(convolution)


def add_positions(model: PreTrainedModel, inputs: MutableMapping[str, Tensor]) -> None:
    """Give the inputs of a model of FAMILIES the positions of all tokens, before they are moved."""
    if model.config.model_type in FAMILIES and "mm_token_type_ids" in inputs:
        images = inputs.get("image_grid_thw")
        inputs["position_ids"], _ = model.base_model.get_rope_index(
            inputs["input_ids"],
            inputs["mm_token_type_ids"],
            image_grid_thw=images,
            attention_mask=inputs["attention_mask"],
        )


class LinearPatches(nn.Module):
    """A convolution over one patch at a time: [P, C, T, H, W] to [P, D]."""

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias

    def forward(self, patches: Tensor) -> Tensor:
        return linear(patches.flatten(1), self.weight.flatten(1), self.bias)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None = None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention within windows, as transformers asks for it.

    Args:
        query, key, value: [1, H, T, D]; the windows of all images, one behind the other.
        cu_seq_lens_q: [W + 1] bounds of the windows, from 0 to T.

    Returns:
        [1, T, H, D], and no weights.
    """
    bounds = cu_seq_lens_q.tolist()
    lengths = [end - start for start, end in pairwise(bounds)]
    outputs, start = [], 0
    for length, alike in groupby(lengths):
        end = start + length * len(list(alike))
        q, k, v = (_windows(one[:, :, start:end], length) for one in (query, key, value))
        found = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        outputs.append(found.transpose(1, 2).flatten(0, 1))
        start = end
    return cat(outputs)[None], None


def _windows(tokens: Tensor, length: int) -> Tensor:
    """[1, H, W x length, D] as [W, H, length, D]."""
    return tokens[0].unflatten(1, (-1, length)).transpose(0, 1)
