"""Faster vision towers give what transformers' own give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from torch.nn import functional
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from atelier.judge_models import local, qwen_vl
from atelier.judge_models.local import LocalJudge

TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}  # fmt: skip
VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
FAMILIES = {
    "qwen2_vl": (
        Qwen2VLForConditionalGeneration, Qwen2VLConfig,
        {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 1},
    ),
    "qwen2_5_vl": (
        Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLConfig,
        {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "window_size": 16,
         "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": (
        Qwen3VLForConditionalGeneration, Qwen3VLConfig,
        {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32,
         "num_position_embeddings": 64, "deepstack_visual_indexes": []},
    ),
}  # fmt: skip
# Images of 4x4, 6x4 and 6x4 patches: windows of several lengths, and some alike.
GRIDS = torch.tensor([[1, 4, 4], [1, 6, 4], [1, 6, 4]])


def model_of(family: str) -> PreTrainedModel:
    torch.manual_seed(0)
    kind, config, vision = FAMILIES[family]
    return kind(config(text_config=TEXT, vision_config={**VISION, **vision})).eval()


def seen(model: PreTrainedModel) -> torch.Tensor:
    visual = model.get_submodule("model.visual")
    torch.manual_seed(1)
    patches = torch.randn(int(GRIDS.prod(dim=1).sum()), 3 * 2 * 4 * 4)
    with torch.inference_mode():
        return visual(patches, grid_thw=GRIDS).pooler_output


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, module: object) -> Iterator[list[int]]:
    """Windows of each call of attention in a module."""
    windows: list[int] = []

    def attend(query: torch.Tensor, *rest: torch.Tensor, **more: float) -> torch.Tensor:
        windows.append(len(query))
        return functional.scaled_dot_product_attention(query, *rest, **more)

    monkeypatch.setattr(module, "scaled_dot_product_attention", attend)
    yield windows


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_quicker_tower_sees_the_same(family: str) -> None:
    model = model_of(family)
    before = seen(model)
    qwen_vl.quicken(model)
    torch.testing.assert_close(seen(model), before, rtol=1e-5, atol=1e-6)


def test_windows_of_one_length_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("qwen2_5_vl")
    qwen_vl.quicken(model)
    with counted(monkeypatch, qwen_vl) as windows:
        seen(model)
    # By windows of 4x4 patches: one of 16, then one of 16 and one of 8 twice; whole: 16, 24, 24.
    assert windows == [2, 1, 1, 1, 1, 2]


def test_other_families_stay_as_they_are() -> None:
    model = model_of("qwen2_5_vl")
    model.config.model_type = "another"
    own = model.get_submodule("model.visual.patch_embed.proj")
    qwen_vl.quicken(model)
    assert model.get_submodule("model.visual.patch_embed.proj") is own


def test_positions_that_are_given_are_those_that_a_model_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = LocalJudge("assets/tiny-judge", "cpu")
    colours = ("red", "blue", "green")
    images = [[Image.new("RGB", (64, 64), one)] for one in colours]
    questions = ["Is it red?", "Does this image show one blue circle?", "Is there a square?"]
    given = judge.p_yes(images, questions)
    asked: list[int] = []
    monkeypatch.setattr(
        local, "add_positions", lambda _, inputs: asked.append(len(inputs["input_ids"]))
    )
    assert judge.p_yes(images, questions) == given
    assert asked == [3]


def test_a_model_does_not_compute_positions_that_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = LocalJudge("assets/tiny-judge", "cpu")
    computed: list[torch.device] = []
    model = judge._model.base_model
    own = model.get_rope_index

    def counted(tokens: torch.Tensor, *rest: object, **more: object) -> object:
        computed.append(tokens.device)
        return own(tokens, *rest, **more)

    monkeypatch.setattr(model, "get_rope_index", counted)
    judge.p_yes([[Image.new("RGB", (64, 64))]] * 2, ["Is it red?"] * 2)
    assert len(computed) == 1
