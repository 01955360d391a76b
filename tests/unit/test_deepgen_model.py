"""DeepGen's parts: layers, queries, positions, padding, references."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from diffusers import AutoencoderKL
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from atelier.config.facts.connector_fit import chosen_layers
from atelier.errors import ConfigError
from atelier.policies.deepgen import vision
from atelier.policies.deepgen.conditions import Conditions
from atelier.policies.deepgen.connector import Bridge, Shape
from atelier.policies.deepgen.inputs import Reader
from atelier.policies.deepgen.reading import fused_states
from atelier.policies.deepgen.references import reference_latents
from atelier.policies.deepgen.template import FILE, Template, read_template, write_template
from atelier.policies.deepgen.transformer import masked, velocities, velocity
from atelier.policies.deepgen.vision import MEAN, STD, seen
from tests.support import random_deepgen, random_qwen

PROMPTS = ("a red circle", 'the word "KEM" in red above two blue circles', "")
SMALL = Shape(
    states=10,
    queries=2,
    query_width=5,
    hidden_size=8,
    intermediate_size=12,
    num_hidden_layers=2,
    num_attention_heads=2,
    tokens=6,
    pooled=4,
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model():
    return random_deepgen.build()


@pytest.fixture(scope="module")
def reader(model) -> Reader:
    return Reader(model.tokenizer, model.template, model.vlm, model.bridge.shape.queries)


# The language model -------------------------------------------------------------------------------


def test_layers_are_every_sixth_below_the_last() -> None:
    assert chosen_layers(36) == [35, 29, 23, 17, 11, 5]
    assert chosen_layers(28) == [27, 21, 15, 9, 3]
    assert chosen_layers(8) == [7, 1]
    assert chosen_layers(7) == [6], "0 are the embeddings"
    assert len(chosen_layers(80)) == 6


def test_states_are_what_the_chosen_layers_give_over_text_and_queries(model, reader) -> None:
    inputs = reader.inputs([reader.asked("a red circle")])
    seen_of_layers: dict[int, torch.Tensor] = {}
    layers = model.vlm.model.language_model.layers
    hooks = [
        layer.register_forward_hook(
            lambda _, __, out, at=at: seen_of_layers.update(
                {at: out[0] if isinstance(out, tuple) else out}
            )
        )
        for at, layer in enumerate(layers, start=1)
    ]
    with torch.no_grad():
        states = fused_states(model.vlm, model.bridge.meta_queries, inputs)
    for hook in hooks:
        hook.remove()
    expected = torch.cat([seen_of_layers[7], seen_of_layers[1]], dim=-1)
    assert torch.equal(states, expected)
    assert states.shape == (1, inputs.ids.shape[1] + 3, 2 * 32)


def test_a_prompt_has_no_system_turn(model, reader) -> None:
    (ids,) = [reader.asked("a red circle").ids]
    assert model.tokenizer.decode(ids) == (
        "<|im_start|>user\nGenerate an image: a red circle<|im_end|>\n<|im_start|>assistant\n"
    )
    assert model.tokenizer.decode(reader.asked("").ids) == (
        "<|im_start|>user\nGenerate an image: <|im_end|>\n<|im_start|>assistant\n"
    )


def test_braces_of_a_prompt_are_words() -> None:
    assert "Generate an image: {input} {x}<|im_end|>" in Template().drawing("{input} {x}")


def test_prompts_are_padded_on_the_left_and_their_places_counted_without_it(reader) -> None:
    short, long = reader.asked("a"), reader.asked("a red circle")
    inputs = reader.inputs([short, long])
    more = len(long.ids) - len(short.ids)
    assert inputs.mask[0].tolist() == [False] * more + [True] * (len(short.ids) + 3)
    assert inputs.mask[1].all()
    assert inputs.ids[0, more:].tolist() == list(short.ids)
    for axis in range(3):
        own = inputs.positions[axis, 0, more:]
        assert own.tolist() == list(range(len(short.ids) + 3)), "the queries' ids are text"


def test_places_of_text_are_the_models_own(model, reader) -> None:
    inputs = reader.inputs([reader.asked(one) for one in PROMPTS])
    assert [one.ids for one in reader.drawings(PROMPTS)] == [
        reader.asked(one).ids for one in PROMPTS
    ]
    ids = torch.nn.functional.pad(inputs.ids, (0, 3))
    own, _ = model.vlm.model.get_rope_index(
        ids, mm_token_type_ids=torch.zeros_like(ids), attention_mask=inputs.mask
    )
    assert torch.equal(own, inputs.positions)


def test_a_prompt_is_read_the_same_beside_others(model, reader) -> None:
    """Batch of three equals three of one, in float32."""
    asked = [reader.asked(one) for one in PROMPTS]
    inputs = reader.inputs(asked)
    with torch.no_grad():
        states = fused_states(model.vlm, model.bridge.meta_queries, inputs)
        tokens, pooled = model.bridge(states, inputs.mask)
        for row, one in enumerate(asked):
            alone = reader.inputs([one])
            own = fused_states(model.vlm, model.bridge.meta_queries, alone)
            expected, mean = model.bridge(own)
            torch.testing.assert_close(states[row][inputs.mask[row]], own[0], atol=2e-5, rtol=2e-5)
            torch.testing.assert_close(
                tokens[row][inputs.mask[row]], expected[0], atol=2e-5, rtol=2e-5
            )
            torch.testing.assert_close(pooled[row], mean[0], atol=2e-5, rtol=2e-5)


def test_the_published_form_lets_padding_in(model, reader) -> None:
    asked = [reader.asked(one) for one in PROMPTS]
    inputs = reader.inputs(asked)
    with torch.no_grad():
        states = fused_states(model.vlm, model.bridge.meta_queries, inputs)
        _, masked_mean = model.bridge(states, inputs.mask)
        _, published_mean = model.bridge(states)
    assert torch.allclose(masked_mean[1], published_mean[1], atol=1e-5), "the longest has none"
    assert (masked_mean[0] - published_mean[0]).abs().max() > 1e-2


# The connector ------------------------------------------------------------------------------------


def test_an_untrained_connector_says_nothing() -> None:
    tokens, pooled = Bridge(SMALL)(torch.randn(2, 3, 10))
    assert not tokens.any()
    assert not pooled.any()
    assert tokens.shape == (2, 3, 6)
    assert pooled.shape == (2, 4)


def test_the_published_shape_has_its_parameters() -> None:
    with torch.device("meta"):
        bridge = Bridge(Shape())
    names = set(bridge.state_dict())
    assert {"meta_queries", "projector_1.weight", "connector.layers.5.mlp.fc2.bias"} <= names
    assert bridge.projector_1.weight.shape == (2048, 12_288)
    assert bridge.projector_2.weight.shape == (2048, 2048)
    assert bridge.projector_3.weight.shape == (4096, 2048)
    assert bridge.connector.layers[0].mlp.fc1.weight.shape == (11_946, 2048)
    layer = 4 * (2048 * 2048 + 2048) + 2 * 2048 * 11_946 + 11_946 + 2048 + 4 * 2048
    around = 12_288 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 4096 + 4096 + 128 * 2048
    assert sum(one.numel() for one in bridge.parameters()) == 6 * layer + around


def test_a_layer_by_hand() -> None:
    """One layer of one head on two tokens, in float64: pre-norm, softmax over both, tanh GELU."""
    shape = Shape(4, 1, 4, 4, 4, 1, 1, 4, 4)
    torch.manual_seed(0)
    bridge = Bridge(shape).double()
    random_deepgen.widen(bridge)
    layer = bridge.connector.layers[0]
    x = torch.randn(1, 2, 4, dtype=torch.float64)

    def norm(value):
        centred = value - value.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def linear(name, value):
        module = layer.get_submodule(name)
        return value @ module.weight.T + module.bias

    before = norm(x) * layer.layer_norm1.weight + layer.layer_norm1.bias
    query, key, value = (linear(f"self_attn.{one}_proj", before) for one in "qkv")
    weights = (query @ key.transpose(1, 2) / 2).softmax(-1)
    hidden = x + linear("self_attn.out_proj", weights @ value)
    inner = linear("mlp.fc1", norm(hidden) * layer.layer_norm2.weight + layer.layer_norm2.bias)
    cubic = math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)
    expected = hidden + linear("mlp.fc2", 0.5 * inner * (1 + cubic.tanh()))
    torch.testing.assert_close(layer(x, None), expected, atol=1e-12, rtol=1e-12)


def test_queries_begin_with_the_published_spread() -> None:
    torch.manual_seed(0)
    queries = Bridge(Shape(8, 500, 400, 8, 8, 1, 1, 8, 8)).meta_queries
    assert float(queries.detach().std()) == pytest.approx(1 / math.sqrt(400), rel=0.02)


# The transformer ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def painter():
    return random_deepgen.build_dual_transformer()


def told(batch: int, length: int = 5, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.tensor([900.0, 400.0, 20.0][:batch]),
        torch.randn(batch, length, 12, generator=generator),
        torch.randn(batch, 10, generator=generator),
    )


def noisy(batch: int, side: int = 16, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, 4, side, side, generator=torch.Generator().manual_seed(seed))


def test_without_references_it_is_the_stock_forward_bit_for_bit() -> None:
    stock, ours = random_deepgen.build_dual_transformer(), random_deepgen.build_dual_transformer()
    masked(ours)
    x, (timestep, tokens, pooled) = noisy(3), told(3)
    x.requires_grad_(True)
    again = x.detach().clone().requires_grad_(True)
    expected = stock(
        hidden_states=x,
        timestep=timestep,
        encoder_hidden_states=tokens,
        pooled_projections=pooled,
        return_dict=False,
    )[0]
    found = velocity(ours, again, timestep, tokens, pooled)
    assert torch.equal(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    assert torch.equal(x.grad, again.grad)
    gradients = zip(stock.parameters(), ours.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in gradients if a.grad is not None)
    listed = velocities(ours, list(again), timestep, tokens, pooled)
    torch.testing.assert_close(torch.stack(listed), expected, atol=1e-5, rtol=1e-5)


def test_recomputation_changes_nothing(painter) -> None:
    plain = masked(random_deepgen.build_dual_transformer())
    saving = masked(random_deepgen.build_dual_transformer()).train()
    saving.enable_gradient_checkpointing()
    references = [[noisy(1, 8)[0]], [noisy(1, 16)[0]]]
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    for one in (plain, saving):
        made = velocities(one, list(noisy(2)), *told(2), mask, references)
        sum(value.square().sum() for value in made).backward()
    pairs = zip(plain.parameters(), saving.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs if a.grad is not None)


def test_padded_conditions_change_nothing(painter) -> None:
    masked(painter)
    timestep, tokens, pooled = told(2)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 3:] = False
    with torch.no_grad():
        together = velocity(painter, noisy(2), timestep, tokens, pooled, mask)
        changed = tokens.clone()
        changed[0, 3:] = 100.0
        assert torch.equal(together, velocity(painter, noisy(2), timestep, changed, pooled, mask))
        alone = velocity(painter, noisy(2)[:1], timestep[:1], tokens[:1, :3], pooled[:1])
        other = velocity(painter, noisy(2)[1:], timestep[1:], tokens[1:], pooled[1:])
        unmasked = velocity(painter, noisy(2), timestep, tokens, pooled)
    torch.testing.assert_close(together[:1], alone, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(together[1:], other, atol=1e-5, rtol=1e-5)
    assert (unmasked[:1] - alone).abs().max() > 1e-2


def test_rows_with_references_are_as_if_alone(painter) -> None:
    """Sizes, numbers of references and lengths of conditions differ."""
    masked(painter)
    timestep, tokens, pooled = told(3)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 4 + [False]])
    x = [noisy(1, 16)[0], noisy(1, 8, seed=2)[0], noisy(1, 12, seed=3)[0]]
    references = [[noisy(1, 8, seed=4)[0]], [], [noisy(1, 16, seed=5)[0], noisy(1, 4, seed=6)[0]]]
    with torch.no_grad():
        together = velocities(painter, x, timestep, tokens, pooled, mask, references)
        for row, made in enumerate(together):
            length = int(mask[row].sum())
            own = slice(row, row + 1)
            (alone,) = velocities(
                painter,
                [x[row]],
                timestep[own],
                tokens[own, :length],
                pooled[own],
                None,
                [references[row]],
            )
            assert made.shape == x[row].shape
            torch.testing.assert_close(made, alone, atol=2e-5, rtol=2e-5)


def test_a_reference_matters_and_so_does_its_place_on_the_grid(painter) -> None:
    masked(painter)
    x, inputs = list(noisy(1)), told(1)
    shown = noisy(1, 16, seed=9)[0]
    with torch.no_grad():
        (without,) = velocities(painter, x, *inputs)
        (beside,) = velocities(painter, x, *inputs, None, [[shown]])
        (turned,) = velocities(painter, x, *inputs, None, [[shown.flip(-1)]])
        (twice,) = velocities(painter, x, *inputs, None, [[shown, shown]])
    assert (without - beside).abs().max() > 1e-2
    assert (turned - beside).abs().max() > 1e-2
    assert (twice - beside).abs().max() > 1e-3


def test_references_stand_behind_the_noisy_tokens(painter) -> None:
    """By the stock blocks: [noisy, reference] in, of which the first 64 patches come out."""
    x, shown = noisy(1), noisy(1, 8, seed=9)
    timestep, tokens, pooled = told(1)
    with torch.no_grad():
        (found,) = velocities(painter, list(x), timestep, tokens, pooled, None, [[shown[0]]])
        image = torch.cat([painter.pos_embed(x), painter.pos_embed(shown)], dim=1)
        signal = painter.time_text_embed(timestep, pooled)
        text = painter.context_embedder(tokens)
        for block in random_deepgen.build_dual_transformer().transformer_blocks:
            text, image = block(image, text, signal)
        patches = painter.proj_out(painter.norm_out(image, signal))[:, :64]
    expected = torch.einsum("nhwpqc->nchpwq", patches.reshape(1, 8, 8, 2, 2, 4))
    torch.testing.assert_close(found[None], expected.reshape(1, 4, 16, 16), atol=1e-6, rtol=1e-6)


def test_the_forced_diagonal_keeps_padding_finite(painter) -> None:
    masked(painter)
    mask = torch.tensor([[True] * 5, [True] + [False] * 4])
    x = noisy(2).requires_grad_(True)
    made = velocities(painter, list(x), *told(2), mask, [[noisy(1, 16)[0]], []])
    torch.stack(made).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(one).all() for one in made)


# Images that are edited ---------------------------------------------------------------------------


def test_patches_are_those_of_the_library(model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against transformers' own processor, of an image that is seen in its own size."""
    levels = torch.randint(0, 256, (3, 56, 84), generator=torch.Generator().manual_seed(0))
    picture = levels.permute(1, 2, 0).numpy().astype("uint8")
    made = Qwen2VLImageProcessorPil()(picture, return_tensors="pt")
    monkeypatch.setattr(vision, "SEEN_AS_A_TOKEN", 28)
    found = seen([levels / 127.5 - 1], model.vlm.config.vision_config)
    assert found.grid.tolist() == made["image_grid_thw"].tolist() == [[1, 4, 6]]
    torch.testing.assert_close(found.patches, made["pixel_values"], atol=1e-4, rtol=0)
    assert found.tokens == (6,)


def test_512_pixels_are_seen_as_448(model) -> None:
    found = seen([torch.zeros(3, 512, 512)], model.vlm.config.vision_config)
    assert found.grid.tolist() == [[1, 32, 32]]
    assert found.tokens == (256,)
    red = (0.5 - MEAN[0]) / STD[0]
    assert float(found.patches[0, 0]) == pytest.approx(red, abs=1e-6)


def test_an_image_of_odd_sides_is_refused(model) -> None:
    with pytest.raises(ValueError, match="sides are multiples of 32"):
        seen([torch.zeros(3, 64, 70)], model.vlm.config.vision_config)


def test_an_edit_shows_its_images_to_the_language_model(model, reader) -> None:
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    asked = reader.asked("make it red", [image, image[:, :32]])
    pad = random_qwen.IMAGE
    assert asked.ids.count(pad) == 4 + 2
    text = model.tokenizer.decode(asked.ids)
    assert text.startswith("<|im_start|>user\n<|vision_start|><|image_pad|>")
    assert "<|vision_end|>\nmake it red<|im_end|>\n<|im_start|>assistant\n" in text
    plain = reader.asked("a")
    inputs = reader.inputs([asked, plain, asked])
    with torch.no_grad():
        together = fused_states(model.vlm, model.bridge.meta_queries, inputs)
        alone = fused_states(model.vlm, model.bridge.meta_queries, reader.inputs([asked]))
        other = reader.asked("make it red", [-image, image[:, :32]])
        changed = fused_states(model.vlm, model.bridge.meta_queries, reader.inputs([other]))
    torch.testing.assert_close(together[0], alone[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(together[2], alone[0], atol=2e-5, rtol=2e-5)
    assert (changed - alone).abs().max() > 1e-2
    # An image's tokens have places in a plane: its second row starts where its first does.
    first = asked.ids.index(pad)
    rows = inputs.positions[1, 0, first : first + 4].tolist()
    columns = inputs.positions[2, 0, first : first + 4].tolist()
    assert [rows[2] - rows[0], columns[2] - columns[0]] == [1, 0]


def test_latents_of_references_are_in_the_transformers_units(model) -> None:
    vae: AutoencoderKL = model.vae
    vae.register_to_config(shift_factor=0.3, scaling_factor=2.0)
    image = torch.rand(3, 64, 64) * 2 - 1
    (found,) = reference_latents(vae, [image])
    with torch.no_grad():
        mean = vae.encode(image[None]).latent_dist.mean[0]
    torch.testing.assert_close(found, (mean - 0.3) * 2)


# Batches and files --------------------------------------------------------------------------------


def test_conditions_are_padded_on_the_right() -> None:
    a = {"tokens": torch.ones(2, 3), "pooled": torch.zeros(5)}
    b = {"tokens": torch.ones(4, 3), "pooled": torch.ones(5)}
    made = Conditions(("a", "b"), (a, b))
    assert made.mask.tolist() == [[True, True, False, False], [True] * 4]
    assert made.tokens[0, 2:].abs().max() == 0
    assert made.tokens.dtype == torch.float32
    assert made.pooled.tolist() == [[0] * 5, [1] * 5]
    same = Conditions(("a", "a"), (a, a))
    assert same.mask is None
    with pytest.raises(ValueError, match="one of two batches of conditions has no pooled"):
        made.after(Conditions(("c",), ({"tokens": torch.ones(2, 3)},)))
    seen = replace(made, references=[[torch.zeros(1, 2, 2)]] * len(made))
    with pytest.raises(ValueError, match="one of two batches of conditions has no references"):
        seen.after(same)
    both = made.after(same)
    assert both.words == ("a", "a", "a", "b")
    assert both.mask.sum(1).tolist() == [2, 2, 2, 4]
    assert both.tokens.shape == (4, 4, 3)
    assert both.pooled[:, 0].tolist() == [0, 0, 0, 1]


def test_a_template_is_read_back(tmp_path) -> None:
    template = Template(GENERATION="Draw: {input}")
    write_template(template, tmp_path)
    assert read_template(tmp_path) == template
    (tmp_path / FILE).write_text('{"GENERATION": "Draw it"}')
    with pytest.raises(ConfigError, match=r"GENERATION is a text with \{input\} in it once"):
        read_template(tmp_path)
    (tmp_path / FILE).write_text("[]")
    with pytest.raises(ConfigError, match="expected a JSON object"):
        read_template(tmp_path)
