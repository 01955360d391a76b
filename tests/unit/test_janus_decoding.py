"""Sampling over a cache, teacher-forced replay and the library's own generation agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from atelier.policies.janus.conversation import Context, Conversation
from atelier.policies.janus.decoding import Decoder, Execution
from atelier.policies.janus.log_probs import Form, FormName, ImageForm, Sampler
from atelier.policies.janus.module import JanusModule, Segment
from atelier.policies.janus.rows import Drawn, Picture, Rows, Seen, stack
from atelier.policies.janus.sampling import Generation, TextTokens
from atelier.policies.language.log_probs import TextForm
from tests.support.random_janus import WIDE, Sizes, build_model, build_processor, likeliest_image

PROMPTS = ("a red circle", "a blue square and a red circle", "red")
KEYS = (11, 12, 13)
YES_NO = (7, 8)
CLOSE = {"atol": 1e-5, "rtol": 0.0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


both = pytest.mark.parametrize("sizes", [Sizes(), WIDE], ids=["4x4", "8x8"], indirect=True)


@pytest.fixture(scope="module")
def sizes(request: pytest.FixtureRequest) -> Sizes:
    """4x4 tokens, 64 wide; the tests of `both` run with 8x8, 96 wide, grouped keys too."""
    return getattr(request, "param", Sizes())


@pytest.fixture(scope="module")
def module(sizes: Sizes) -> JanusModule:
    return JanusModule(build_model(sizes))


@pytest.fixture(scope="module")
def talk(sizes: Sizes) -> Conversation:
    return Conversation(build_processor(sizes).tokenizer, sizes.side**2)


def random_codes(sizes: Sizes, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(sizes.codes, (count, sizes.side**2), generator=generator)


def random_features(sizes: Sizes, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, sizes.side**2, sizes.width, generator=generator)


def drawing(talk: Conversation) -> Rows:
    return stack([talk.drawing(one) for one in PROMPTS], [[]] * len(PROMPTS), talk.pad)


def situations(
    talk: Conversation, sizes: Sizes
) -> dict[str, tuple[list[Context], list[list[Picture]]]]:
    """Contexts with images of both kinds, and more than one of them."""
    codes, features = random_codes(sizes, 6), random_features(sizes, 6)
    answers = [(talk.tokenizer("No because red")["input_ids"]), [8], [7, 9, 10]]
    redrawing = [talk.redrawing(*pair) for pair in zip(PROMPTS, answers, strict=True)]
    # The second image follows, and is looked at.
    third = [talk.judging(*pair) for pair in zip(PROMPTS, answers, strict=True)]
    return {
        "drawing": ([talk.drawing(one) for one in PROMPTS], [[], [], []]),
        "editing": (
            [talk.editing(one) for one in PROMPTS],
            [[Drawn(codes[i])] for i in range(3)],
        ),
        "redrawing": (redrawing, [[Drawn(codes[i])] for i in range(3)]),
        "judging": (
            [talk.judging(one) for one in PROMPTS],
            [[Seen(features[i])] for i in range(3)],
        ),
        "third": (third, [[Drawn(codes[i]), Seen(features[i])] for i in range(3)]),
    }


def write(module: JanusModule, rows: Rows, keys: Sequence[int], **settings: object) -> TextTokens:
    wanted: dict[str, object] = {"limit": 12, "eos": 2, "pad": 0, "first_tokens": YES_NO}
    return Generation(module).text(rows, keys, **{**wanted, **settings})  # type: ignore[arg-type]


# Decode = replay --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cfg_tempered", "conditional", "sampler"])
@both
@pytest.mark.parametrize("situation", ["drawing", "redrawing", "third"])
def test_images_replay_as_they_were_drawn(
    module: JanusModule, talk: Conversation, sizes: Sizes, situation: str, name: FormName
) -> None:
    contexts, images = situations(talk, sizes)[situation]
    rows = stack(contexts, images, talk.pad, hidden={talk.eos})
    sampler = Sampler(guidance_scale=5, temperature=0.9, top_k=40, top_p=0.95)
    form = ImageForm(name, sampler)
    drawn = Generation(module).images(rows, KEYS, sampler, form)
    with torch.no_grad():
        replayed = module(Segment(rows, drawn.codes, form))
    assert drawn.codes.shape == (3, sizes.side**2)
    assert len(drawn.codes.unique()) > 8
    torch.testing.assert_close(replayed, drawn.log_probs, **CLOSE)


@both
@pytest.mark.parametrize("situation", ["drawing", "judging", "third"])
def test_text_replays_as_it_was_written(
    module: JanusModule, talk: Conversation, sizes: Sizes, situation: str
) -> None:
    contexts, images = situations(talk, sizes)[situation]
    rows = stack(contexts, images, talk.pad)
    for form in (TextForm(), TextForm(temperature=0.7, first_tokens=YES_NO)):
        written = write(module, rows, KEYS, form=form)
        with torch.no_grad():
            replayed = module(Segment(rows, written.tokens, form))
        torch.testing.assert_close(replayed[written.mask], written.log_probs[written.mask], **CLOSE)


@both
@pytest.mark.parametrize("guidance", [1.0, 5.0])
def test_cached_decoding_is_uncached_decoding(
    module: JanusModule, talk: Conversation, guidance: float
) -> None:
    """Every step again, from the beginning, by the model's own forward pass without a cache."""
    rows = drawing(talk)
    sampler = Sampler(guidance_scale=guidance)
    codes = Generation(module).images(rows, KEYS, sampler).codes
    decoder = Decoder(module, "image", sampler.guided, rows.tokens.shape[1] + codes.shape[1])
    cached = [decoder.begin(rows), *(decoder.step(codes[:, i]) for i in range(5))]
    tokens, mask, padding = rows.tokens, rows.mask, rows.padding
    if sampler.guided:
        tokens = torch.cat([tokens, rows.null_tokens])
        mask, padding, codes = mask.repeat(2, 1), padding.repeat(2, 1), codes.repeat(2, 1)
    model = module.janus
    embeddings = model.get_input_embeddings()(tokens)
    for step in range(6):
        drawn = model.prepare_embeddings_for_image_generation(codes[:, :step])
        length = tokens.shape[1] + step
        seen = torch.cat([mask, mask.new_ones(len(mask), step)], dim=1)
        with torch.no_grad():
            hidden = model.model.language_model(
                inputs_embeds=torch.cat([embeddings, drawn], dim=1),
                attention_mask=seen.long(),
                position_ids=(torch.arange(length)[None] - padding).clamp(min=0),
                use_cache=False,
            ).last_hidden_state
            logits = model.model.generation_head(hidden[:, -1])
        torch.testing.assert_close(cached[step], logits, **CLOSE)


@both
def test_a_target_is_predicted_at_the_place_before_it(
    module: JanusModule, talk: Conversation, sizes: Sizes
) -> None:
    """Logits at -1-N ... -2 of [context ; targets], all targets fed."""
    context, codes = talk.drawing(PROMPTS[0]), random_codes(sizes, 1)
    rows = stack([context], [[]], talk.pad)
    model = module.janus
    with torch.no_grad():
        found = module(Segment(rows, codes, ImageForm("conditional")))
        text = model.get_input_embeddings()(torch.tensor([context.tokens]))
        drawn = model.prepare_embeddings_for_image_generation(codes)
        hidden = model.model.language_model(
            inputs_embeds=torch.cat([text, drawn], dim=1)
        ).last_hidden_state
        count = codes.shape[1]
        logits = model.model.generation_head(hidden)[:, -1 - count : -1]
    expected = logits.log_softmax(-1).gather(-1, codes[..., None])[..., 0]
    torch.testing.assert_close(found, expected, **CLOSE)


# Batches ----------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("situation", ["drawing", "editing"])
def test_left_padded_batches_are_single_prompts(
    module: JanusModule, talk: Conversation, sizes: Sizes, situation: str
) -> None:
    contexts, images = situations(talk, sizes)[situation]
    sampler, generation = Sampler(guidance_scale=5), Generation(module)
    together = generation.images(stack(contexts, images, talk.pad), KEYS, sampler)
    form = ImageForm(sampler=sampler)
    for i, (context, pictures) in enumerate(zip(contexts, images, strict=True)):
        rows = stack([context], [pictures], talk.pad)
        alone = generation.images(rows, KEYS[i : i + 1], sampler)
        torch.testing.assert_close(alone.codes[0], together.codes[i], atol=0, rtol=0)
        torch.testing.assert_close(alone.log_probs[0], together.log_probs[i], **CLOSE)
        with torch.no_grad():
            replayed = module(Segment(rows, together.codes[i : i + 1], form))
        torch.testing.assert_close(replayed[0], together.log_probs[i], **CLOSE)


def test_written_text_does_not_depend_on_the_batch(
    module: JanusModule, talk: Conversation, sizes: Sizes
) -> None:
    contexts, images = situations(talk, sizes)["judging"]
    together = write(module, stack(contexts, images, talk.pad), KEYS)
    for i, (context, pictures) in enumerate(zip(contexts, images, strict=True)):
        alone = write(module, stack([context], [pictures], talk.pad), KEYS[i : i + 1])
        own = together.mask[i]
        assert together.tokens[i][own].tolist() == alone.tokens[0].tolist()
        torch.testing.assert_close(alone.log_probs[0], together.log_probs[i][own], **CLOSE)


def test_a_key_decides_and_nothing_else(module: JanusModule, talk: Conversation) -> None:
    rows = stack([talk.drawing(PROMPTS[0])] * 3, [[]] * 3, talk.pad)
    codes = Generation(module).images(rows, (1, 2, 1), Sampler(guidance_scale=2)).codes
    assert codes[0].tolist() == codes[2].tolist() != codes[1].tolist()


def test_more_pads_change_nothing(module: JanusModule, talk: Conversation) -> None:
    """Not even the rotary positions."""
    rows = stack([talk.drawing(PROMPTS[0])], [[]], talk.pad)
    pads = torch.full((1, 9), talk.pad)
    wider = Rows(
        torch.cat([pads, rows.tokens], 1),
        torch.cat([pads, rows.null_tokens], 1),
        torch.cat([pads < 0, rows.mask], 1),
    )
    for guided in (False, True):
        capacity = wider.tokens.shape[1]
        logits = [Decoder(module, "image", guided, capacity).begin(one) for one in (rows, wider)]
        torch.testing.assert_close(logits[0], logits[1], atol=2e-6, rtol=0)


def test_what_is_hidden_changes_nothing_that_follows(
    module: JanusModule, talk: Conversation, sizes: Sizes
) -> None:
    """The EOS of a reflection, for the image that is drawn after it."""
    contexts, images = situations(talk, sizes)["redrawing"]
    hidden = stack(contexts, images, talk.pad, hidden={talk.eos})
    shown = stack(contexts, images, talk.pad)
    swapped = [
        replace(one, tokens=one.tokens.where(one.tokens != talk.eos, 12)) for one in (hidden, shown)
    ]
    found = [
        Decoder(module, "image", False, one.tokens.shape[1]).begin(one)
        for one in (hidden, swapped[0], shown, swapped[1])
    ]
    torch.testing.assert_close(found[0], found[1], atol=0, rtol=0)
    assert not torch.allclose(found[2], found[3], atol=1e-3)
    assert not torch.allclose(found[0], found[2], atol=1e-3)


# Text -------------------------------------------------------------------------------------------


def test_an_answer_begins_with_a_permitted_token_and_ends_with_eos(
    module: JanusModule, talk: Conversation
) -> None:
    rows = stack([talk.drawing(PROMPTS[0])] * 60, [[]] * 60, talk.pad)
    found = write(module, rows, range(60), limit=30)
    assert set(found.tokens[:, 0].tolist()) == set(YES_NO)
    assert int(found.ended.sum()) > 3, "a test without EOS shows nothing"
    for tokens, mask, ended in zip(found.tokens, found.mask, found.ended, strict=True):
        count = int(mask.sum())
        assert mask.tolist() == [True] * count + [False] * (len(mask) - count)
        assert tokens[count:].tolist() == [talk.pad] * (len(tokens) - count)
        assert tokens[mask].tolist().count(talk.eos) == int(ended.sum()) <= 1
        assert count == len(tokens) or bool(ended[count - 1])
    assert float(found.log_probs[~found.mask].abs().sum()) == 0
    # Steps go on until the last row has ended: that EOS is among them.
    assert found.tokens.shape[1] == 30 or bool(found.ended[:, -1].any())


def test_the_chance_of_a_first_token_is_how_often_it_is_drawn(
    module: JanusModule, talk: Conversation
) -> None:
    rows = stack([talk.drawing(PROMPTS[1])] * 500, [[]] * 500, talk.pad)
    found = write(module, rows, range(500), limit=1)
    torch.testing.assert_close(found.first.sum(-1), torch.ones(500))
    share = (found.tokens[:, 0] == YES_NO[0]).float().mean()
    assert float(share) == pytest.approx(float(found.first[0, 0]), abs=0.06)


def test_text_is_not_guided(module: JanusModule, talk: Conversation) -> None:
    with pytest.raises(ValueError, match="without guidance"):
        write(module, drawing(talk), KEYS, sampler=Sampler(guidance_scale=5))


# The library, and other ways to execute a step --------------------------------------------------


@both
@pytest.mark.parametrize("guidance", [1.5, 5.0])
def test_the_library_draws_the_same_likeliest_image_tokens(
    module: JanusModule, talk: Conversation, guidance: float
) -> None:
    rows = drawing(talk)
    expected = likeliest_image(module.janus, rows.tokens, rows.mask, guidance)
    sampler = Sampler(guidance_scale=guidance, top_k=1)
    assert Generation(module).images(rows, KEYS, sampler).codes.tolist() == expected.tolist()


def test_the_library_writes_the_same_likeliest_text(
    module: JanusModule, talk: Conversation
) -> None:
    rows = drawing(talk)
    expected = module.janus.generate(
        rows.tokens, attention_mask=rows.mask.long(), do_sample=False, max_new_tokens=12
    )
    found = write(module, rows, KEYS, sampler=Sampler(top_k=1), first_tokens=())
    written = expected[:, rows.tokens.shape[1] :]
    assert found.tokens.tolist() == written[:, : found.tokens.shape[1]].tolist()


@pytest.mark.parametrize("execution", ["dynamic", "compile"])
def test_other_executions_give_the_same_tokens(
    module: JanusModule, talk: Conversation, execution: Execution
) -> None:
    rows, sampler = drawing(talk), Sampler(guidance_scale=5)
    expected = Generation(module).images(rows, KEYS, sampler)
    # dynamo's own backend: a compiler would take a minute, and is not what is tested.
    other = Generation(module, execution, backend="eager")
    # A compiled decoder is used again, and must not remember.
    other.images(rows, (1, 2, 3), sampler)
    found = other.images(rows, KEYS, sampler)
    torch.testing.assert_close(found.codes, expected.codes, atol=0, rtol=0)
    torch.testing.assert_close(found.log_probs, expected.log_probs, **CLOSE)


@pytest.mark.parametrize("execution", ["eager", "dynamic"])
def test_a_decoder_may_begin_anew(
    module: JanusModule, talk: Conversation, execution: Execution
) -> None:
    rows = drawing(talk)
    used = Decoder(module, "image", True, 40, execution)
    used.begin(rows.at([2, 1]))
    used.step(torch.tensor([3, 4]))
    fresh = Decoder(module, "image", True, 40, execution)
    for tokens in (None, torch.tensor([5, 6, 7]), torch.tensor([8, 9, 1])):
        pair = [one.begin(rows) if tokens is None else one.step(tokens) for one in (used, fresh)]
        assert torch.equal(*pair)


def test_eager_attention_is_sdpa(sizes: Sizes, module: JanusModule, talk: Conversation) -> None:
    eager = build_model(sizes)
    eager.set_attn_implementation("eager")
    rows, sampler = drawing(talk), Sampler(guidance_scale=5)
    expected = Generation(module).images(rows, KEYS, sampler)
    other = JanusModule(eager)
    found = Generation(other).images(rows, KEYS, sampler)
    assert found.codes.tolist() == expected.codes.tolist()
    with torch.no_grad():
        replayed = other(Segment(rows, found.codes, ImageForm(sampler=sampler)))
    torch.testing.assert_close(replayed, expected.log_probs, **CLOSE)


def test_a_recorded_step_needs_a_gpu(module: JanusModule, talk: Conversation) -> None:
    with pytest.raises(ValueError, match="cuda_graph: needs a GPU"):
        Generation(module, "cuda_graph").images(drawing(talk), KEYS, Sampler())


def test_contexts_have_to_fit(module: JanusModule, talk: Conversation) -> None:
    with pytest.raises(ValueError, match="do not fit in 4 places"):
        Decoder(module, "image", False, capacity=4).begin(drawing(talk))


# 16 bit -----------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("held", ["autocast", "bfloat16"])
def test_16_bit_on_a_cpu(sizes: Sizes, talk: Conversation, held: str) -> None:
    """Decode and replay differ by rounding only, and log-probs are float32."""
    model = build_model(sizes)
    module = JanusModule(model.bfloat16() if held == "bfloat16" else model)
    rows, sampler = drawing(talk), Sampler(guidance_scale=5)
    form: Form = ImageForm(sampler=sampler)
    with torch.autocast("cpu", torch.bfloat16, enabled=held == "autocast"):
        drawn = Generation(module).images(rows, KEYS, sampler)
        written = write(module, rows, KEYS)
        replayed = module(Segment(rows, drawn.codes, form))
        read = module(Segment(rows, written.tokens, TextForm()))
    for found, expected in ((replayed, drawn.log_probs), (read * written.mask, written.log_probs)):
        assert found.dtype == expected.dtype == torch.float32
        assert (found - expected).abs().mean().item() < 0.05
    assert float(drawn.log_probs.mean()) < -0.5
    replayed.sum().backward()
    assert model.model.generation_head.proj_out.weight.grad is not None
