"""The fast transformer is the stock one: same velocities, gradients, names and files."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from diffusers import SD3Transformer2DModel
from torch import Tensor, nn

from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.policy import LoraConfig
from atelier.config.sections.train import TrainConfig
from atelier.errors import ConfigError
from atelier.policies.deepgen.transformer import masked
from atelier.policies.deepgen.transformer import velocity as deepgens
from atelier.policies.sd3.fast import install
from atelier.policies.sd3.fast.block import head_normed, layer_normed
from atelier.policies.sd3.fast.install import make_fast
from atelier.policies.sd3.fast.layers import folded, outputs, read
from atelier.policies.sd3.lora import add_adapter
from atelier.training.distributed import World
from atelier.training.engines import make_engine
from tests.support.random_transformers import TOKENS, Kind, build, inputs
from tests.support.ranks import on_ranks

# Besides the usual ones, layers that are products of their own.
ADAPTED = LoraConfig(rank=4, alpha=12).target_modules
LORA = LoraConfig(
    rank=4, alpha=12, target_modules=[*ADAPTED, "attn2.to_q", "attn2.to_out.0", "ff.net.2"]
)


def transformer(
    kind: Kind, trained: str, fast: bool, compiled: bool = False, folds: bool = False
) -> SD3Transformer2DModel:
    made = build(kind).requires_grad_(trained == "full")
    if trained == "lora":
        add_adapter(made, LORA, seed=0)
        generator = torch.Generator().manual_seed(1)
        for one in made.parameters():
            if one.requires_grad:
                one.data = torch.randn(one.shape, generator=generator) / len(one[0])
    return make_fast(made, compiled, folded=folds) if fast else made


def velocity(model: nn.Module, **others: Tensor) -> Tensor:
    return model(**{**inputs(), **others}, return_dict=False)[0]


def gradients(model: nn.Module, made: Tensor) -> dict[str, Tensor | None]:
    weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(2))
    (made * weight).sum().backward()
    return {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


def require_equal(found: Tensor, expected: Tensor, what: str = "velocity") -> None:
    """To 1e-5 of all of it."""
    assert expected.any(), f"{what} is nothing"
    assert (found - expected).norm() <= 1e-5 * expected.norm(), what


def require_equal_gradients(
    found: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None]
) -> None:
    assert found.keys() == expected.keys()
    largest = max(one.norm() for one in expected.values() if one is not None)
    for name, one in expected.items():
        other = found[name]
        assert (one is None) == (other is None), name
        if one is not None and other is not None:
            # What only makes keys larger cancels in softmax: its gradient is rounding.
            assert (other - one).norm() <= 1e-5 * max(one.norm(), 1e-2 * largest), name


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("trained", ["lora", "folded", "full"])
@pytest.mark.parametrize("kind", ["sd3", "sd35"])
def test_velocities_and_gradients_are_those_of_diffusers(
    kind: Kind, trained: str, checkpointing: bool
) -> None:
    results = []
    for fast in (False, True):
        of = "full" if trained == "full" else "lora"
        model = transformer(kind, of, fast, folds=trained == "folded")
        if checkpointing:
            model.enable_gradient_checkpointing()
        made = velocity(model)
        results.append((made, gradients(model, made)))
    (stock, theirs), (fast, ours) = results
    require_equal(fast, stock)
    require_equal_gradients(ours, theirs)
    assert sum(one is not None for one in ours.values()) > 20


def test_recomputation_runs_a_fast_block_again() -> None:
    model = transformer("sd35", "lora", fast=True)
    model.enable_gradient_checkpointing()
    made = velocity(model)
    passes: list[int] = []
    handle = model.transformer_blocks[0].register_forward_pre_hook(lambda *_: passes.append(1))
    made.sum().backward()
    handle.remove()
    assert passes == [1]


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize("kind", ["sd3", "sd35"])
def test_an_adapter_is_switched_off_and_on(kind: Kind, folds: bool) -> None:
    stock, fast = (transformer(kind, "lora", one, folds=folds) for one in (False, True))
    on = velocity(fast)
    for one in (stock, fast):
        one.disable_adapters()
    require_equal(velocity(fast), velocity(stock))
    require_equal(velocity(fast), velocity(build(kind)))
    assert (velocity(fast) - on).norm() > 0.1 * on.norm()
    fast.enable_adapters()
    assert torch.equal(velocity(fast), on)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_it_is_as_exact_as_stock(dtype: torch.dtype) -> None:
    """Of float32 adapters on a 16-bit base, under the autocast of the policy."""

    def made(fast: bool) -> Tensor:
        model = transformer("sd35", "lora", fast)
        for one in model.parameters():
            if not one.requires_grad:
                one.data = one.data.to(dtype)
        with torch.autocast("cpu", dtype), torch.no_grad():
            found = velocity(model)
        assert found.dtype == dtype
        return found.float()

    with torch.no_grad():
        exact = velocity(transformer("sd35", "lora", fast=False))
    stock, fast = ((made(one) - exact).norm() for one in (False, True))
    assert 0 < fast < 1.2 * stock


@pytest.mark.parametrize(("size", "most"), [(1e-4, 0.25), (1e-3, 0.025), (1e-2, 0.0025)])
def test_what_an_adapter_adds_is_not_lost_in_a_folded_weight(size: float, most: float) -> None:
    """In float16, of weights as large as those of a layer 1536 wide: rounding takes a share of it
    that is the less the larger it is."""
    generator = torch.Generator().manual_seed(0)
    weight, down, up = (
        (torch.randn(shape, generator=generator) * by).half()
        for shape, by in (((512, 512), 0.025), ((32, 512), 0.025), ((512, 32), 2 * size))
    )
    none = torch.zeros(512, dtype=torch.float16)
    made = folded(torch.eye(512).half(), weight, none, down, up).T.double()
    exact = up.double() @ down.double()
    assert (made - weight.double() - exact).norm() < most * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_16_bits_are_rounded_once(dtype: torch.dtype) -> None:
    x = torch.randn(6, 5, 2, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.rand(8, generator=torch.Generator().manual_seed(1)) + 0.5
    assert torch.equal(layer_normed(x), layer_normed(x.float()))
    assert torch.equal(head_normed(x, weight), head_normed(x.float(), weight).to(dtype))


@pytest.mark.parametrize("kind", ["sd3", "sd35"])
def test_it_minds_a_mask(kind: Kind) -> None:
    """As DeepGen's attention does, whose rows are of different lengths."""
    stock = masked(transformer(kind, "lora", fast=False))
    fast = transformer(kind, "lora", fast=True)
    mask = torch.ones(3, TOKENS, dtype=torch.bool)
    told = inputs().values()
    with torch.no_grad():
        whole = deepgens(fast, *told)
        mask[0, 3:] = False
        made = deepgens(fast, *told, mask)
        require_equal(made, deepgens(stock, *told, mask))
    assert (made[0] - whole[0]).norm() > 1e-3 * whole[0].norm()


def test_blocks_compute_without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(*arguments):
        seen.append((torch.is_autocast_enabled("cpu"), arguments[1].dtype))
        return install.run_block(*arguments)

    model = build("sd3").to(torch.bfloat16)
    monkeypatch.setattr(install, "_compiled", lambda any_length: watched)
    make_fast(model, compiled=True)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        velocity(model)
    assert seen == [(False, torch.bfloat16)] * 2


def test_what_attention_is_told_and_nobody_knows_is_refused() -> None:
    model = transformer("sd3", "full", fast=True)
    with pytest.raises(TypeError, match="ip_hidden_states"):
        model(**inputs(), joint_attention_kwargs={"ip_hidden_states": torch.zeros(1)})


def test_other_norms_are_refused() -> None:
    model = build("sd35")
    model.transformer_blocks[1].attn.norm_q = nn.LayerNorm(8)
    with pytest.raises(ConfigError, match=r"policy\.transformer: fast does not know the LayerNorm"):
        make_fast(model, compiled=False)


# Weights ------------------------------------------------------------------------------------------


def test_frozen_layers_lie_together_without_a_copy_from_then_on() -> None:
    layers = [nn.Linear(3, 2 + extra).requires_grad_(False) for extra in range(3)]
    x, before = torch.randn(4, 3), [one.weight.clone() for one in layers]
    expected = [one(x) for one in layers]
    first, again = read(*layers), read(*layers)
    assert len(first.weights) == len(first.biases) == 1
    assert first.weights[0].data_ptr() == again.weights[0].data_ptr() == layers[0].weight.data_ptr()
    assert all(torch.equal(one.weight, value) for one, value in zip(layers, before, strict=True))
    for made, one in zip(outputs(first, x), expected, strict=True):
        torch.testing.assert_close(made, one)
    with torch.no_grad():
        layers[1].weight.zero_()
    assert not outputs(again, x)[1].sub(layers[1].bias).any()
    apart = copy.deepcopy(nn.ModuleList(layers))
    assert apart[1].weight.untyped_storage().size() < first.weights[0].untyped_storage().size()
    torch.testing.assert_close(outputs(read(*apart), x), outputs(again, x))


def test_trained_layers_stay_where_they_are() -> None:
    layers = [nn.Linear(3, 2) for _ in range(3)]
    places = [one.weight.data_ptr() for one in layers]
    assert [one.data_ptr() for one in read(*layers).weights] == places
    layers[0].weight.requires_grad_(False)
    assert len(read(*layers).weights) == 3


@pytest.mark.parametrize("broken", ["merged", "conv"])
def test_layers_of_other_kinds_are_refused(broken: str) -> None:
    attention = transformer("sd3", "lora", fast=False).transformer_blocks[0].attn
    if broken == "merged":
        attention.to_k.merge()
    else:
        attention.to_k = nn.Conv1d(3, 3, 1)
    with pytest.raises(TypeError, match=r"only plain adapters|no linear layer"):
        read(attention.to_q, attention.to_k, attention.to_v)


@pytest.mark.parametrize("trained", ["lora", "full"])
def test_names_and_files_are_those_of_diffusers(trained: str, tmp_path: Path) -> None:
    stock, fast = (transformer("sd35", trained, one) for one in (False, True))
    made = velocity(fast)
    weights = fast.state_dict()
    assert [*weights] == [*stock.state_dict()]
    for one in stock.parameters():
        one.data.zero_()
    stock.load_state_dict(weights)
    require_equal(made, velocity(stock))
    if trained == "full":
        fast.save_pretrained(tmp_path)
        again = SD3Transformer2DModel.from_pretrained(tmp_path)
        assert all(torch.equal(one, weights[name]) for name, one in again.state_dict().items())
    else:
        fast.save_lora_adapter(tmp_path)
        again = build("sd35")
        again.load_lora_adapter(
            tmp_path, prefix=None, weight_name="pytorch_lora_weights.safetensors"
        )
        require_equal(velocity(again), made)


def test_a_frozen_model_is_saved_as_diffusers_saves_it(tmp_path: Path) -> None:
    """Also when its layers lie together in memory."""
    fast = make_fast(build("sd35").requires_grad_(False), compiled=False)
    made = velocity(fast)
    fast.save_pretrained(tmp_path)
    require_equal(velocity(SD3Transformer2DModel.from_pretrained(tmp_path)), made)


def test_a_copy_computes_with_its_own_weights() -> None:
    model = transformer("sd35", "full", fast=True)
    before = velocity(model)
    frozen = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.1)
    require_equal(velocity(frozen), before)
    assert (velocity(model) - before).norm() > 0.1 * before.norm()


# Engines ------------------------------------------------------------------------------------------

ENGINES = {
    "ddp": LaunchConfig(device="cpu"),
    "zero2": LaunchConfig(device="cpu", engine="deepspeed", zero_stage=2),
}


def two_steps(world: World) -> dict[str, dict[str, Tensor]]:
    """Weights after two updates, by engine, what is trained and who computes."""
    return {
        f"{name} {trained} {fast}": _two_steps(launch, trained, fast, world)
        for name, launch in ENGINES.items()
        for trained in ("lora", "full")
        for fast in (False, True)
    }


def _two_steps(launch, trained: str, fast: bool, world: World) -> dict[str, Tensor]:
    model = transformer("sd35", trained, fast)
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    # Below epsilon an update is proportional to the gradient, and no sign that rounding decides.
    settings = TrainConfig(adam_epsilon=1.0, max_grad_norm=1e3)
    engine = make_engine(model, weights, settings, launch, world)
    for _ in range(2):
        with engine.accumulate(True):
            made = velocity(engine.module) * (1 + world.rank)
            engine.backward(made.square().mean(), True)
        engine.step(1e-2)
    return engine.weights()


@pytest.fixture(scope="module")
def of_ranks() -> list[dict[str, dict[str, Tensor]]]:
    return on_ranks(two_steps, 2)


@pytest.mark.parametrize("trained", ["lora", "full"])
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_train_it_as_they_train_stock(of_ranks, engine: str, trained: str) -> None:
    start = transformer("sd35", trained, fast=False).state_dict()
    for found in of_ranks:
        stock, fast = (found[f"{engine} {trained} {one}"] for one in (False, True))
        assert stock.keys() == fast.keys()
        moved = max(float((one - start[name]).abs().max()) for name, one in stock.items())
        differ = max(float((fast[name] - one).abs().max()) for name, one in stock.items())
        assert moved > 1e-3
        assert differ < 1e-4 * moved + 1e-7


# Compiled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [False, True])
def test_a_kind_of_blocks_is_one_graph_for_texts_of_all_lengths(
    monkeypatch: pytest.MonkeyPatch, folds: bool
) -> None:
    """By dynamo alone, which says whether a block is one graph; Inductor takes minutes."""
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **told: compile_(f, backend=counting, **told))
    torch._dynamo.reset()
    stock = masked(transformer("sd3", "lora", fast=False))
    model = transformer("sd3", "lora", fast=False)
    fast = make_fast(model, compiled=True, any_length=True, folded=folds)
    for tokens in (5, 7):
        mask = torch.ones(3, tokens, dtype=torch.bool)
        mask[0, 3:] = False
        told = (*inputs(tokens=tokens).values(), mask)
        with torch.no_grad():
            require_equal(deepgens(fast, *told), deepgens(stock, *told))
    assert len(graphs) == 2, "the last block has no text behind it"
    assert torch._dynamo.config.recompile_limit >= install.GRAPHS


@pytest.mark.slow
@pytest.mark.parametrize("folds", [False, True])
def test_compiled_by_inductor_it_is_the_same(folds: bool) -> None:
    stock = transformer("sd35", "lora", fast=False)
    fast = transformer("sd35", "lora", fast=True, compiled=True, folds=folds)
    torch._dynamo.reset()
    made = [velocity(one) for one in (stock, fast)]
    require_equal(made[1], made[0])
    found = [gradients(model, one) for model, one in zip((stock, fast), made, strict=True)]
    require_equal_gradients(found[1], found[0])
    with torch.no_grad():
        require_equal(velocity(fast), made[0])
    fast.zero_grad()
    fast.enable_gradient_checkpointing()
    require_equal_gradients(gradients(fast, velocity(fast)), found[0])
