"""What is trained, what is frozen, and where gradients go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from atelier.policies.janus.conversation import Conversation
from atelier.policies.janus.log_probs import Form, ImageForm, Sampler
from atelier.policies.janus.module import JanusModule, Segment
from atelier.policies.janus.rows import Drawn, Picture, Seen, stack
from atelier.policies.janus.trainable import train_fully
from atelier.policies.language.adapters import (
    adapter_off,
    require_frozen,
    train_adapter,
    trained,
)
from atelier.policies.language.log_probs import TextForm
from atelier.policies.language.reference import Reference, frozen_copy
from tests.support.random_janus import WIDE, Sizes, build_model, build_processor

IMAGE_FORM = ImageForm(sampler=Sampler(guidance_scale=5))
IMAGE_PARTS = {"generation_embeddings", "generation_aligner", "generation_head"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def make(sizes: Sizes | None = None, **settings: object) -> JanusModule:
    return JanusModule(build_model(sizes), **settings)  # type: ignore[arg-type]


def segment(
    form: Form, image: str = "", sizes: Sizes | None = None, constant: bool = False
) -> Segment:
    """Of two contexts, without an image or with one that is "drawn" or "seen"."""
    sizes = sizes or Sizes()
    talk = Conversation(build_processor(sizes).tokenizer, sizes.side**2)
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(sizes.codes, (2, sizes.side**2), generator=generator)
    features = torch.randn(2, sizes.side**2, sizes.width, generator=generator)
    prompts = ("red", "a blue square")
    pictures: list[list[Picture]] = [[], []]
    if image:
        pictures = [[Drawn(codes[i]) if image == "drawn" else Seen(features[i])] for i in range(2)]
    build = talk.judging if image else talk.drawing
    rows = stack([build(one) for one in prompts], pictures, talk.pad)
    targets = codes if isinstance(form, ImageForm) else torch.tensor([[7, 9, 2], [8, 2, 0]])
    return Segment(rows, targets, form, constant)


def moved_by(module: JanusModule, one: Segment) -> set[str]:
    """Parts that a segment gives a gradient other than zero."""
    module.zero_grad()
    (module(one) * torch.linspace(0.5, 1.5, one.targets.shape[1])).sum().backward()
    names = [
        name
        for name, parameter in module.named_parameters()
        if parameter.grad is not None and bool(parameter.grad.any())
    ]
    return {part_of(name) for name in names}


def part_of(name: str) -> str:
    if "embed_tokens" in name:
        return "embed_tokens"
    parts = name.removeprefix("janus.").removeprefix("model.").split(".")
    return parts[0]


# Gradients --------------------------------------------------------------------------------------


def test_an_image_trains_all_but_the_text_head() -> None:
    module = make()
    train_fully(module, text=True)
    expected = {"language_model", "embed_tokens", *IMAGE_PARTS}
    assert moved_by(module, segment(IMAGE_FORM)) == expected
    assert moved_by(module, segment(ImageForm("conditional"))) == expected


def test_text_trains_its_head_and_not_that_of_images() -> None:
    module = make()
    train_fully(module, text=True)
    text = {"language_model", "embed_tokens", "lm_head"}
    assert moved_by(module, segment(TextForm())) == text
    assert moved_by(module, segment(TextForm(), "seen")) == text
    # The embeddings of a drawn image are the policy's own.
    assert moved_by(module, segment(TextForm(), "drawn")) == text | {
        "generation_embeddings",
        "generation_aligner",
    }


def test_a_constant_context_gets_no_gradient() -> None:
    """The published introspective training: embeddings of contexts are constants."""
    module = make()
    train_fully(module, text=True)
    image = segment(IMAGE_FORM, "drawn", constant=True)
    assert moved_by(module, image) == {"language_model", *IMAGE_PARTS}
    slots = image.rows.codes
    assert slots is not None
    unused = set(range(Sizes().codes)) - set(image.targets[:, :-1].flatten().tolist())
    table = module.janus.model.generation_embeddings.weight.grad
    assert table is not None
    assert not bool(table[sorted(unused)].any())


def test_both_rows_of_guidance_carry_gradients() -> None:
    """Half of them is -(s-1)/s of the other, where prompts are alike: nearly 0 at s = 1."""
    gradients = []
    for scale in (1.0, 5.0):
        module = make()
        train_fully(module, text=False)
        module(segment(ImageForm(sampler=Sampler(guidance_scale=scale)))).sum().backward()
        gradients.append(module.janus.model.generation_head.vision_head.bias.grad)
    conditional = gradients[0]
    assert not torch.allclose(conditional, gradients[1], rtol=0.1)


def test_whoever_waits_for_a_gradient_of_every_trained_parameter_gets_one() -> None:
    """DDP would hang; what the segment does not use gets zeros."""
    for form in (IMAGE_FORM, TextForm()):
        module = make()
        train_fully(module, text=True)
        module(segment(form, constant=True)).sum().backward()
        lacking = [name for name, one in trained(module).items() if one.grad is None]
        assert lacking == []


def test_without_text_segments_the_text_head_is_frozen_unless_it_is_the_embedding() -> None:
    module = make()
    train_fully(module, text=False)
    assert "janus.lm_head.weight" not in trained(module)
    tied = make(Sizes(tied=True))
    train_fully(tied, text=False)
    assert tied.janus.lm_head.weight.requires_grad


# Frozen -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["full", "adapter"])
def test_what_sees_and_codes_images_is_frozen(how: str) -> None:
    module = make()
    with pytest.raises(RuntimeError, match=r"frozen parameters are trained, such as vision_model"):
        require_frozen(module)
    train_fully(module, text=True) if how == "full" else train_adapter(module, 4, 8)
    module.train()
    inside = module.janus.model
    frozen = (inside.vision_model, inside.aligner, inside.vqmodel)
    expected = sum(one.numel() for part in frozen for one in part.parameters())
    assert require_frozen(module) == expected > 10_000
    assert not any(one.training for one in module.modules())
    inside.vqmodel.train()
    with pytest.raises(RuntimeError, match="vqmodel is in training mode"):
        require_frozen(module)


# Adapters ---------------------------------------------------------------------------------------


def test_an_adapter_is_on_the_language_model_alone() -> None:
    module = make()
    train_adapter(module, rank=4, alpha=8, projections=("q_proj", "v_proj"), seed=1)
    names = sorted(trained(module))
    assert len(names) == 2 * 2 * 2  # layers, projections, matrices
    assert all(name.startswith("janus.model.language_model.layers.") for name in names)
    assert moved_by(module, segment(IMAGE_FORM)) == {"language_model"}


def test_an_adapter_begins_as_nothing_is_float32_and_follows_its_seed() -> None:
    one = segment(IMAGE_FORM)
    plain = make()(one)
    modules = [make() for _ in range(3)]
    for module, seed in zip(modules, (1, 1, 2), strict=True):
        train_adapter(module, 4, 8, seed=seed)
    torch.testing.assert_close(modules[0](one), plain, atol=0, rtol=0)
    first, again, other = (next(iter(trained(module).values())) for module in modules)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    half = JanusModule(build_model().bfloat16())
    train_adapter(half, 4, 8)
    assert {parameter.dtype for parameter in trained(half).values()} == {torch.float32}


def test_an_unknown_projection_is_refused() -> None:
    with pytest.raises(ValueError, match="fc9"):
        train_adapter(make(), 4, 8, projections=("fc9",))


# Reference --------------------------------------------------------------------------------------


def shaken(module: JanusModule) -> None:
    with torch.no_grad():
        for parameter in trained(module).values():
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )


@pytest.mark.parametrize("how", ["full", "adapter"])
@pytest.mark.parametrize("form", [IMAGE_FORM, TextForm()])
def test_the_reference_stays_what_the_policy_was(how: str, form: Form) -> None:
    module, one = make(), segment(form, "drawn")
    train_fully(module, text=True) if how == "full" else train_adapter(module, 4, 8, seed=1)
    reference = Reference(module)
    before = module(one).detach()
    shaken(module)
    found = reference.log_probs(one)
    torch.testing.assert_close(found, before, atol=1e-6, rtol=0)
    assert not found.requires_grad
    after = module(one)
    assert float((after - before).detach().abs().max()) > 0.01
    assert after.requires_grad


def test_a_frozen_copy_shares_what_is_frozen_anyway() -> None:
    module = make()
    train_fully(module, text=True)
    copy = frozen_copy(module)
    assert isinstance(copy, JanusModule)
    assert copy.janus.model.vqmodel is module.janus.model.vqmodel
    assert copy.janus.model.vision_model is module.janus.model.vision_model
    assert copy.language_model is not module.language_model
    assert trained(copy) == {}
    assert len(trained(module)) > 10


def test_an_adapter_is_on_again_even_after_an_error() -> None:
    module = make()
    train_adapter(module, 4, 8)
    names = set(trained(module))
    with pytest.raises(KeyError), adapter_off(module):
        raise KeyError
    assert set(trained(module)) == names


# Memory for time --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", [IMAGE_FORM, ImageForm("sampler", Sampler(5, temperature=0.9, top_k=20, top_p=0.9))]
)
@pytest.mark.parametrize("settings", [{"logits_chunk": 5}, {"gradient_checkpointing": True}])
def test_recomputing_changes_neither_log_probs_nor_gradients(
    form: Form, settings: dict[str, int]
) -> None:
    found = []
    for module in (make(WIDE), make(WIDE, **settings)):
        train_fully(module, text=False)
        log_probs = module(segment(form, "drawn", WIDE))
        log_probs.sum().backward()
        found.append([log_probs.detach(), *(one.grad for one in trained(module).values())])
    for plain, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(plain, recomputed, atol=2e-5, rtol=1e-4)


def test_gradient_checkpointing_is_of_the_language_model_and_keeps_only_its_layers_inputs() -> None:
    """Counted in tensors that autograd saves: without, each layer keeps a dozen."""
    saved = []
    for checkpointing in (False, True):
        module = make(gradient_checkpointing=checkpointing)
        train_fully(module, text=False)
        count = [0]

        def keep(tensor: torch.Tensor, count: list[int] = count) -> torch.Tensor:
            count[0] += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module(segment(IMAGE_FORM))
        saved.append(count[0])
        assert not any(one.training for one in module.modules())
    assert saved[1] < 0.6 * saved[0]


# Engines ----------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_ddp_takes_segments_of_one_kind_after_the_other() -> None:
    """It waits for all parameters, and says so at the next forward pass."""
    module, plain = make(), make()
    segments = [segment(form, constant=True) for form in (IMAGE_FORM, TextForm(), IMAGE_FORM)]
    for one in (module, plain):
        train_fully(one, text=True)
    wrapped = nn.parallel.DistributedDataParallel(module)
    for one in segments:
        wrapped(one).sum().backward()
        plain(one).sum().backward()
    expected = {name: one.grad for name, one in trained(plain).items()}
    for name, parameter in trained(module).items():
        torch.testing.assert_close(parameter.grad, expected[name])
