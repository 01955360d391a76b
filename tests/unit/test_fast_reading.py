"""What a fast block was read of is kept, and read again where it may have changed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from diffusers import SD3Transformer2DModel
from peft import LoraConfig
from torch import nn

from atelier.config.sections.policy import LoraConfig as Adapter
from atelier.policies.sd3.fast import reading
from atelier.policies.sd3.fast.install import make_fast
from atelier.policies.sd3.lora import peft_config
from tests.support.random_transformers import build, inputs

BLOCKS = 2


def transformer(fast: bool, second: bool = False) -> SD3Transformer2DModel:
    """On a frozen one, an adapter that does something; `second`: another one, which is off."""
    made = build("sd35").requires_grad_(False)
    made.add_adapter(peft_config(Adapter(rank=4, alpha=12)))
    if second:
        add_second(made)
        made.set_adapter("default")
    randomize(made, 1)
    return make_fast(made, compiled=False) if fast else made


def add_second(model: SD3Transformer2DModel) -> None:
    """On fewer layers than the first, with the same scale; both are on."""
    config = LoraConfig(r=2, lora_alpha=6, target_modules=["attn.to_q", "attn.to_v", "ff.net.2"])
    model.add_adapter(config, "second")
    model.set_adapter(["default", "second"])


def randomize(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, one in model.named_parameters():
        if "lora_" in name:
            one.data = torch.randn(one.shape, generator=generator) / len(one[0])


def velocity(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs(), return_dict=False)[0]


def require_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Blocks, as they are read."""
    seen: list[nn.Module] = []
    read_block = reading.read_block

    def counted(block: nn.Module, folded: bool):
        seen.append(block)
        return read_block(block, folded)

    monkeypatch.setattr(reading, "read_block", counted)
    return seen


def test_it_is_read_once_a_state_of_its_adapters(reads: list[nn.Module]) -> None:
    model = transformer(fast=True)
    for _ in range(3):
        velocity(model)
    assert len(reads) == BLOCKS
    for _ in range(2):
        model.disable_adapters()
        velocity(model)
        model.enable_adapters()
        velocity(model)
    assert len(reads) == 2 * BLOCKS


def test_updates_in_place_are_seen_without_reading(reads: list[nn.Module]) -> None:
    stock, fast = transformer(fast=False), transformer(fast=True)
    before = velocity(fast)
    for model in (stock, fast):
        with torch.no_grad():
            for one in model.parameters():
                one.mul_(1.1)
    require_equal(velocity(fast), velocity(stock))
    assert (velocity(fast) - before).norm() > 1e-2 * before.norm()
    assert len(reads) == BLOCKS


def frozen(model: SD3Transformer2DModel) -> nn.Linear:
    """A layer that lies together with others."""
    return model.transformer_blocks[0].attn.to_k.base_layer


def data_set(model: SD3Transformer2DModel) -> None:
    weight = frozen(model).weight
    weight.data = weight.data * 2


def all_data_set(model: SD3Transformer2DModel) -> None:
    """As a module's `.to` does."""
    for one in model.parameters():
        one.data = one.data.clone() * 1.1


def parameter_replaced(model: SD3Transformer2DModel) -> None:
    frozen(model).bias = nn.Parameter(frozen(model).bias + 1, requires_grad=False)


def module_replaced(model: SD3Transformer2DModel) -> None:
    attention = model.transformer_blocks[0].attn
    attention.add_k_proj = copy.deepcopy(attention.add_q_proj)


def adapter_parameter_replaced(model: SD3Transformer2DModel) -> None:
    up = model.transformer_blocks[0].attn.to_k.lora_B["default"]
    up.weight = nn.Parameter(up.weight * 2)


def norm_replaced(model: SD3Transformer2DModel) -> None:
    norm = model.transformer_blocks[0].attn.norm_q
    norm.weight = nn.Parameter(norm.weight * 2, requires_grad=False)


def adapter_added(model: SD3Transformer2DModel) -> None:
    add_second(model)
    randomize(model, 2)


def adapter_chosen(model: SD3Transformer2DModel) -> None:
    model.set_adapter("second")


def two_chosen(model: SD3Transformer2DModel) -> None:
    model.set_adapter(["second", "default"])


def rescaled(model: SD3Transformer2DModel) -> None:
    model.transformer_blocks[0].attn.to_k.scaling["default"] = 9.0


def switched_off(model: SD3Transformer2DModel) -> None:
    model.disable_adapters()


def one_layer_switched_off(model: SD3Transformer2DModel) -> None:
    model.transformer_blocks[0].attn.to_k.enable_adapters(False)


def quietly(change: Callable[[SD3Transformer2DModel], None], model: SD3Transformer2DModel) -> None:
    """Without what peft does with `requires_grad` besides."""
    flags = {name: one.requires_grad for name, one in model.named_parameters()}
    change(model)
    for name, one in model.named_parameters():
        one.requires_grad_(flags[name])


def switched_off_quietly(model: SD3Transformer2DModel) -> None:
    quietly(switched_off, model)


def chosen_quietly(model: SD3Transformer2DModel) -> None:
    quietly(adapter_chosen, model)


def removed(model: SD3Transformer2DModel) -> None:
    model.unload_lora()


CHANGES = [
    data_set,
    all_data_set,
    parameter_replaced,
    module_replaced,
    adapter_parameter_replaced,
    norm_replaced,
    adapter_added,
    adapter_chosen,
    two_chosen,
    rescaled,
    switched_off,
    one_layer_switched_off,
    switched_off_quietly,
    removed,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_whatever_changes_it_computes_what_stock_computes(
    change: Callable[[SD3Transformer2DModel], None],
) -> None:
    second = change in (adapter_chosen, two_chosen)
    stock, fast = (transformer(fast=one, second=second) for one in (False, True))
    before = velocity(fast)
    for model in (stock, fast):
        change(model)
    after = velocity(fast)
    require_equal(after, velocity(stock))
    assert (after - before).norm() > 1e-4 * before.norm(), "nothing has changed"
    with torch.no_grad():  # nor does it hold on to what it was
        for model in (stock, fast):
            for one in model.parameters():
                one.mul_(0.9)
    require_equal(velocity(fast), velocity(stock))


def test_adapters_of_the_same_layers_and_scale_are_told_apart() -> None:
    stock, fast = transformer(fast=False), transformer(fast=True)
    for model in (stock, fast):
        model.add_adapter(peft_config(Adapter(rank=4, alpha=12)), "second")
        model.set_adapter("default")
        randomize(model, 1)
    before = velocity(fast)
    for model in (stock, fast):
        chosen_quietly(model)
    require_equal(velocity(fast), velocity(stock))
    assert (velocity(fast) - before).norm() > 1e-4 * before.norm()


def test_frozen_layers_that_are_trained_from_now_on_get_gradients() -> None:
    models = transformer(fast=False), transformer(fast=True)
    gradients = []
    for model in models:
        velocity(model)
        frozen(model).weight.requires_grad_(True)
        model(**inputs(), return_dict=False)[0].square().mean().backward()
        gradients.append(frozen(model).weight.grad)
    require_equal(gradients[1], gradients[0])


def test_a_merged_adapter_is_refused_also_when_it_was_read_before() -> None:
    model = transformer(fast=True)
    velocity(model)
    model.transformer_blocks[1].attn.to_q.merge()
    with pytest.raises(TypeError, match="not merged"):
        velocity(model)


def test_a_copy_reads_its_own(reads: list[nn.Module]) -> None:
    model = transformer(fast=True)
    before = velocity(model)
    other = copy.deepcopy(model)
    data_set(model)
    require_equal(velocity(other), before)
    assert len(reads) == 2 * BLOCKS
    mine, its = (one.transformer_blocks[0].forward.args[-1] for one in (model, other))
    assert mine is not its
    with torch.no_grad():
        frozen(other).weight.mul_(3)
    assert (velocity(other) - before).norm() > 1e-3 * before.norm()


def test_no_more_states_are_kept_than_a_few() -> None:
    model = transformer(fast=True)
    layer = model.transformer_blocks[0].attn.to_k
    for step in range(3 * reading.STATES):
        layer.scaling["default"] = 1.0 + step
        velocity(model)
    kept = model.transformer_blocks[0].forward.args[-1]._blocks
    assert len(kept) <= reading.STATES
