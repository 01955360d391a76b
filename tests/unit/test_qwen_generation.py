"""Completions of the library's generation, and their replay with gradients, agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from PIL import Image
from transformers import GenerationConfig

from atelier.config.sections.qwen import ConditioningConfig
from atelier.policies.language.adapters import (
    require_frozen,
    train_adapter,
    train_fully,
    trained,
)
from atelier.policies.language.log_probs import DrawnForm, TextForm, TokenSampler
from atelier.policies.language.reference import Reference
from atelier.policies.qwen.areas import Areas
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.generation import Completions, Writing, write
from atelier.policies.qwen.inputs import Inputs, inputs_of
from atelier.policies.qwen.module import Form, QwenModule, Segment
from atelier.policies.qwen.templates import template_of
from tests.support.random_qwen import END, IMAGE, Kind, build_encoder, build_pipeline

WORDS = ("red", "a blue square and a red circle", "two")
COLOURS = ("red", "green", "blue")
KEYS = (11, 12, 13)
PAD = 256
CLOSE = {"atol": 1e-5, "rtol": 0.0}
SAMPLER = TokenSampler(temperature=0.9, top_k=60, top_p=0.95)
KINDS: tuple[Kind, ...] = ("text", "edit")
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@cache
def chat(kind: Kind) -> Chat:
    pipeline = build_pipeline(kind)
    template = template_of(ConditioningConfig(), pipeline)
    return Chat(pipeline, template, Areas(condition=96 * 96))


def context(kind: Kind, rows: Sequence[int] = (0, 1, 2)) -> Inputs:
    """Prompts of several lengths; edits have images of several shapes."""
    sources = [Image.new("RGB", (64 + 32 * row, 64), COLOURS[row]) for row in rows]
    prompts = [
        chat(kind).words(WORDS[row], sources[at] if kind == "edit" else None)
        for at, row in enumerate(rows)
    ]
    return inputs_of(chat(kind), prompts, side="left")


def writing(**settings: object) -> Writing:
    talk = chat("text")
    usual = Writing(
        limit=12,
        end=END,
        pad=PAD,
        sampler=TokenSampler(),
        form=TextForm(),
        never=tuple(one for one in talk.marks if one != END),
    )
    return replace(usual, **settings)  # type: ignore[arg-type]


def module(**settings: object) -> QwenModule:
    return QwenModule(build_encoder(), **settings)  # type: ignore[arg-type]


def replayed(own: QwenModule, inputs: Inputs, written: Completions, form: Form) -> torch.Tensor:
    with torch.no_grad():
        return own(Segment(inputs, written.tokens, form))


def ending_soon(own: QwenModule) -> QwenModule:
    """Whose completions end in different places."""
    with torch.no_grad():
        own.encoder.lm_head.weight[END] *= 2
    return own


# Decode = replay --------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("name", ["full", "drawn"])
def test_completions_replay_as_they_were_written(kind: Kind, name: str) -> None:
    own, inputs = module(), context(kind)
    drawn = DrawnForm(SAMPLER, writing().never)
    form = drawn if name == "drawn" else TextForm(temperature=0.9)
    written = write(own.encoder, inputs, KEYS, writing(sampler=SAMPLER, form=form))
    assert written.tokens.shape == (3, 12)
    assert len(written.tokens.unique()) > 12
    found = replayed(own, inputs, written, form)
    torch.testing.assert_close(found[written.mask], written.log_probs[written.mask], **CLOSE)


@both
def test_the_full_form_is_the_models_own_distribution(kind: Kind) -> None:
    """By a plain forward pass of the library over one sample, without padding and without a
    cache."""
    own = module()
    for row, key in enumerate(KEYS):
        inputs = context(kind, [row])
        written = write(own.encoder, inputs, [key], writing())
        whole = inputs.followed_by(written.tokens)
        with torch.no_grad():
            logits = own.encoder(**whole.arguments(), use_cache=False).logits
        count = written.tokens.shape[1]
        expected = logits[:, -1 - count : -1].log_softmax(-1)
        expected = expected.gather(-1, written.tokens[..., None])[..., 0]
        found = replayed(own, inputs, written, TextForm())
        torch.testing.assert_close(found, expected, **CLOSE)


@both
def test_a_completion_depends_on_its_key_and_not_on_its_batch(kind: Kind) -> None:
    own = module()
    together = write(own.encoder, context(kind), KEYS, writing())
    for row in range(3):
        alone = write(own.encoder, context(kind, [row]), [KEYS[row]], writing())
        assert alone.own()[0] == together.own()[row]
        count = alone.tokens.shape[1]
        torch.testing.assert_close(alone.log_probs[0], together.log_probs[row, :count], **CLOSE)
    same = write(own.encoder, context(kind, [1, 1, 1]), (5, 6, 5), writing()).own()
    assert same[0] == same[2] != same[1]


@both
def test_the_likeliest_completion_is_the_librarys(kind: Kind) -> None:
    own, inputs = module(), context(kind)
    expected = own.encoder.generate(
        **inputs.arguments(),
        generation_config=GenerationConfig(
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=END,
            pad_token_id=PAD,
            suppress_tokens=list(writing().never),
        ),
    )[:, inputs.ids.shape[1] :]
    found = write(own.encoder, inputs, KEYS, writing(sampler=TokenSampler(top_k=1)))
    assert found.tokens.tolist() == expected.tolist()


def test_what_a_checkpoint_generates_with_has_no_say() -> None:
    own, inputs = module(), context("text")
    plain = write(own.encoder, inputs, KEYS, writing())
    own.encoder.generation_config = GenerationConfig(
        repetition_penalty=5.0, temperature=0.01, do_sample=True, min_new_tokens=40
    )
    again = write(own.encoder, inputs, KEYS, writing())
    assert torch.equal(plain.tokens, again.tokens)
    assert torch.equal(plain.log_probs, again.log_probs)


def test_an_image_changes_what_is_written() -> None:
    """Also its shape: the same colour in another size has other positions."""
    own, talk = module(), chat("edit")
    log_probs = []
    for source in (
        Image.new("RGB", (64, 64), "red"),
        Image.new("RGB", (64, 64), "blue"),
        Image.new("RGB", (96, 64), "red"),
    ):
        inputs = inputs_of(talk, [talk.words("red", source)], side="left")
        written = write(own.encoder, inputs, [1], writing(limit=3))
        log_probs.append(written.log_probs[0, 0])
    assert len({round(float(one), 4) for one in log_probs}) == 3


# Ends -------------------------------------------------------------------------------------------


def test_a_completion_ends_once_or_is_cut_off() -> None:
    own = ending_soon(module())
    inputs = context("text", [0] * 40)
    found = write(own.encoder, inputs, range(40), writing(limit=20))
    assert 3 < int(found.ended.sum()) < 38, "a test where none or all end shows nothing"
    for tokens, mask, ended in zip(found.tokens, found.mask, found.ended, strict=True):
        count = int(mask.sum())
        assert mask.tolist() == [True] * count + [False] * (len(mask) - count)
        assert tokens[count:].tolist() == [PAD] * (len(tokens) - count)
        assert tokens[mask].tolist().count(END) == int(ended)
        assert bool(ended) == (int(tokens[count - 1]) == END)
        assert bool(ended) or count == 20
    assert float(found.log_probs[~found.mask].abs().sum()) == 0
    again = replayed(own, inputs, found, TextForm())
    torch.testing.assert_close(again[found.mask], found.log_probs[found.mask], **CLOSE)


def test_marks_are_never_written_however_likely() -> None:
    own = module()
    with torch.no_grad():
        own.encoder.lm_head.weight[IMAGE] *= 20
    inputs = context("text", [0] * 20)
    found = write(own.encoder, inputs, range(20), writing())
    assert not set(found.tokens[found.mask].tolist()).intersection(writing().never)
    free = write(own.encoder, inputs, range(20), writing(never=()))
    assert IMAGE in free.tokens


# Replay with gradients --------------------------------------------------------------------------


def segment(kind: Kind = "text") -> Segment:
    targets = torch.arange(3 * 11).view(3, 11) + 40
    return Segment(context(kind), targets, TextForm(temperature=0.9))


@both
@pytest.mark.parametrize("settings", [{"logits_chunk": 4}, {"gradient_checkpointing": True}])
def test_recomputing_changes_neither_log_probs_nor_gradients(kind: Kind, settings: dict) -> None:
    found = []
    for own in (module(), module(**settings)):
        train_fully(own)
        log_probs = own(segment(kind))
        log_probs.sum().backward()
        assert not any(one.training for one in own.modules())
        found.append([log_probs.detach(), *(one.grad for one in trained(own).values())])
    for plain, recomputed in zip(*found, strict=True):
        torch.testing.assert_close(plain, recomputed, atol=2e-5, rtol=1e-4)


def kept_for_backward(own: QwenModule) -> int:
    """Values that autograd keeps of a replay."""
    count = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        own(segment())
    return count


def test_recomputing_keeps_less() -> None:
    sizes = []
    for settings in ({}, {"gradient_checkpointing": True}, {"logits_chunk": 2}):
        own = module(**settings)
        train_fully(own)
        sizes.append(kept_for_backward(own))
    assert sizes[1] < 0.6 * sizes[0]
    assert sizes[2] < sizes[0] - 2 * 3 * 11 * 256, "logits of all tokens"


@both
@pytest.mark.parametrize("how", ["full", "adapter"])
def test_all_that_is_trained_gets_a_gradient_and_the_vision_tower_none(
    kind: Kind, how: str
) -> None:
    own = module()
    with pytest.raises(RuntimeError, match="frozen parameters are trained, such as visual"):
        require_frozen(own)
    if how == "full":
        train_fully(own)
        assert "encoder.lm_head.weight" in trained(own)
    else:
        train_adapter(own, 4, 8, ("q_proj", "v_proj"), seed=1)
        assert len(trained(own)) == 2 * 2 * 2  # layers, projections, matrices
    assert require_frozen(own) > 10_000
    assert not any("visual" in name for name in trained(own))
    own(segment(kind)).sum().backward()
    assert all(one.grad is not None for one in trained(own).values())


@both
@pytest.mark.parametrize("how", ["full", "adapter"])
def test_the_reference_stays_what_the_policy_was(kind: Kind, how: str) -> None:
    own, one = module(), segment(kind)
    train_fully(own) if how == "full" else train_adapter(own, 4, 8, ("q_proj", "v_proj"), 1)
    reference = Reference(own)
    before = own(one).detach()
    with torch.no_grad():
        for parameter in trained(own).values():
            parameter += 0.05 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
    torch.testing.assert_close(reference.log_probs(one), before, atol=1e-6, rtol=0)
    assert float((own(one) - before).detach().abs().max()) > 0.01
