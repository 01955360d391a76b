"""What the transformer is conditioned with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from PIL import Image
from torch import Tensor, nn

from atelier.errors import ConfigError
from atelier.policies.qwen.areas import Areas
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.conditioning import Conditioned, Conditioning, kept
from atelier.policies.qwen.inputs import Side, inputs_of
from atelier.policies.qwen.negative import Negative
from atelier.policies.qwen.templates import PICTURE, stock
from tests.support.random_qwen import IMAGE, SIDE, WIDTH, Kind, build_pipeline

SMALL = Areas(SIDE**2, SIDE**2)
WORDS = ("a red dog", "two blue cats and a sign that says KEM", "x")
COMPLETIONS = ("A dog stands in the middle.", "Cats.", "")
PLAIN = {"atol": 1e-5, "rtol": 0.0}


class World:
    """A pipeline, its encoder, and what makes conditions with it."""

    def __init__(self, kind: Kind, window: int = 1024, side: Side = "right") -> None:
        self.pipeline = build_pipeline(kind)
        self.encoder = self.pipeline.text_encoder
        self.chat = Chat(self.pipeline, stock(self.pipeline), SMALL)
        self.condition = Conditioning(self.chat, window, side)
        self.edits = kind == "edit"

    def prompts(self, words: tuple[str, ...] = WORDS) -> list[ChatPrompt]:
        if not self.edits:
            return [self.chat.words(one) for one in words]
        return [self.chat.words(one, picture(index)) for index, one in enumerate(words)]

    def tokens(self, *texts: str) -> list[list[int]]:
        return [list(self.chat.tokenizer(one)["input_ids"]) for one in texts]


def picture(index: int) -> Image.Image:
    """Of another size and of other colours each."""
    generator = torch.Generator().manual_seed(index)
    pixels = torch.randint(0, 256, (SIDE + 64 * index, SIDE, 3), generator=generator)
    return Image.fromarray(pixels.to(torch.uint8).numpy())


@contextmanager
def arguments_changed(module: nn.Module, change: Any) -> Iterator[None]:
    """Calls of a module with other keyword arguments."""
    handle = module.register_forward_pre_hook(
        lambda _, args, given: (args, change(given)), with_kwargs=True
    )
    try:
        yield
    finally:
        handle.remove()


def rows_of(conditioned: Conditioned) -> list[Tensor]:
    return [
        row[:length] for row, length in zip(conditioned.embeds, conditioned.lengths, strict=True)
    ]


# T2 and parity with the pipeline ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "edit"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_gives_what_its_rows_give_alone(kind: Kind, side: Side) -> None:
    world = World(kind, side=side)
    prompts, completions = world.prompts(), world.tokens(*COMPLETIONS)
    together = world.condition(world.encoder, prompts, completions)
    assert len(set(together.lengths)) == 3
    assert together.mask.sum(1).tolist() == list(together.lengths)
    for row, prompt, completion in zip(rows_of(together), prompts, completions, strict=True):
        alone = world.condition(world.encoder, [prompt], [completion])
        torch.testing.assert_close(row, alone.embeds[0], **PLAIN)
    for row, length in zip(together.embeds, together.lengths, strict=True):
        assert not row[length:].any()  # zeros beside the mask


def test_embeddings_are_those_of_the_pipeline() -> None:
    world = World("text")
    ours = world.condition(world.encoder, world.prompts())
    embeds, mask = world.pipeline.encode_prompt(list(WORDS))
    assert torch.equal(ours.mask, mask.bool())
    torch.testing.assert_close(ours.embeds, embeds, **PLAIN)


def with_kinds(given: dict[str, Any]) -> dict[str, Any]:
    return {**given, "mm_token_type_ids": (given["input_ids"] == IMAGE).long()}


def without_kinds(given: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in given.items() if name != "mm_token_type_ids"}


def test_embeddings_of_an_edit_are_those_of_the_pipeline_given_an_images_positions() -> None:
    """diffusers 0.42 with transformers 5 does not say where an image is, so that its tokens get the
    positions of a text; the model was trained with those of an image, and so are ours."""
    world = World("edit")
    for index, words in enumerate(WORDS):
        prompt = world.chat.words(words, picture(index))
        ours = world.condition(world.encoder, [prompt])
        seen = [world.chat.seen(picture(index))]
        with arguments_changed(world.encoder, with_kinds):
            as_trained, mask = world.pipeline.encode_prompt([words], image=seen)
        assert mask is None  # all ones
        torch.testing.assert_close(ours.embeds, as_trained, **PLAIN)
        as_it_is, _ = world.pipeline.encode_prompt([words], image=seen)
        assert (ours.embeds - as_it_is).abs().max() > 1e-3
        with arguments_changed(world.encoder.model, without_kinds):
            plain = world.condition(world.encoder, [prompt])
        torch.testing.assert_close(plain.embeds, as_it_is, **PLAIN)


@pytest.mark.parametrize("kind", ["text", "edit"])
def test_a_completion_stands_where_the_pipeline_would_read_it(kind: Kind) -> None:
    """The whole conversation given to it as a prompt begins with the same hidden states."""
    world = World(kind)
    completion = "A dog."
    conversation = f"a red dog{world.chat.template.after}{completion}"
    ours = world.condition(world.encoder, world.prompts(("a red dog",)), world.tokens(completion))
    seen = {"image": [world.chat.seen(picture(0))]} if world.edits else {}
    with arguments_changed(world.encoder, with_kinds if world.edits else dict):
        theirs, _ = world.pipeline.encode_prompt([conversation], **seen)
    assert theirs.shape[1] == ours.lengths[0] + len("\n0assistant\n")
    torch.testing.assert_close(ours.embeds, theirs[:, : ours.lengths[0]], **PLAIN)


def test_a_completion_ends_the_same_whether_it_was_cut_off_or_not() -> None:
    world = World("text")
    prompts = world.prompts(("a",)) * 2
    cut, ended = world.tokens("A dog.", "A dog.<|im_end|>")
    assert len(ended) == len(cut) + 1
    both = world.condition(world.encoder, prompts, [cut, ended])
    assert both.lengths[0] == both.lengths[1] == prompts[0].kept + len(ended)
    assert torch.equal(both.embeds[0], both.embeds[1])


def test_states_are_those_after_the_last_norm() -> None:
    world = World("text")
    prompt = world.prompts(("a red dog",))
    inputs = inputs_of(world.chat, prompt)
    with torch.no_grad():
        states = world.encoder(**inputs.arguments(), output_hidden_states=True).hidden_states
    ours = world.condition(world.encoder, prompt)
    torch.testing.assert_close(ours.embeds[0], states[-1][0, prompt[0].drop :], **PLAIN)
    assert (ours.embeds[0] - states[-2][0, prompt[0].drop :]).abs().max() > 0.1


# What is dropped ----------------------------------------------------------


def numbered(lengths: tuple[int, ...], side: Side) -> tuple[Tensor, Tensor]:
    """Hidden states that are their token's place in its row, and the mask."""
    width = max(lengths)
    hidden, mask = torch.full((len(lengths), width, 1), -1.0), torch.zeros(len(lengths), width)
    for row, length in enumerate(lengths):
        where = slice(width - length, width) if side == "left" else slice(0, length)
        hidden[row, where, 0] = torch.arange(length).float()
        mask[row, where] = 1
    return hidden, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_fault_double_padding_drop(side: Side) -> None:
    """Padding was taken off, and then once more with the 64: 36 and 16 tokens were left of left-
    padded rows of 100 and 90; of 120 and 70, all 70 of the second with its system block."""
    for lengths, theirs in (((100, 90), (36, 16)), ((120, 70), (56, 70))):
        hidden, mask = numbered(lengths, side)
        found = kept(hidden, mask, [64] * 2)
        assert found.lengths == tuple(length - 64 for length in lengths)
        for row, length in zip(rows_of(found), lengths, strict=True):
            assert row[:, 0].tolist() == list(range(64, length))
        paddings = [max(lengths) - length for length in lengths]
        twice = [64 + padding for padding in paddings]
        left = [
            length - drop if length > drop else length
            for length, drop in zip(lengths, twice, strict=True)
        ]
        assert tuple(left) == theirs  # golden values of the fault itself


def test_rows_are_trimmed_to_the_longest_of_them() -> None:
    hidden, mask = numbered((70, 90, 75), "right")
    some = kept(hidden, mask, [60] * 3).rows([2, 0])
    assert some.lengths == (15, 10)
    assert some.embeds.shape == (2, 15, 1)
    assert some.mask.sum(1).tolist() == [15, 10]
    assert some.embeds[1, :10, 0].tolist() == list(range(60, 70))


# The window (T15) -------------------------------------------------------------------------------


def test_tokens_of_a_sample_are_accounted_for() -> None:
    """In the words of whoever has to mend a sample that is too long."""
    world = World("edit", window=60)
    prompt = world.chat.words("make it blue", picture(0))
    user, tail = len("Picture 1: ") + 2 + len("make it blue"), len("0\n0assistant\n")
    assert (prompt.user, prompt.image, prompt.tail) == (user, 4, tail)
    room = world.condition.room(prompt.kept)
    assert room == 60 - prompt.kept - 1
    world.condition(world.encoder, [prompt], [[65] * room])
    with pytest.raises(
        ConfigError,
        match=rf"has 63: {user} of its words, 4 of its source image, {tail} around them, and "
        rf"{room + 4} of its completion, of which the last 3 would",
    ):
        world.condition(world.encoder, [prompt], [[65] * (room + 3)])


def test_too_long_a_completion_is_flagged_and_refused() -> None:
    world = World("text", window=60)
    prompt = world.prompts(("a red dog",))[0]
    room = world.condition.room(prompt.kept)
    fits = world.condition(world.encoder, [prompt], [[65] * room])
    assert fits.lengths == (60,)
    with pytest.raises(ConfigError, match=r"conditioning\.window: 60 .* last 2 would change"):
        world.condition(world.encoder, [prompt] * 2, [[65], [65] * (room + 2)])


def test_fault_head_cap_cuts_the_words_away_behind_an_image() -> None:
    """The first 1024 tokens were kept, and an image alone had 1369: instruction and completion
    reached the transformer never."""
    world = World("edit", window=1024)
    chat = Chat(world.pipeline, world.chat.template, Areas(1024**2, SIDE**2))
    large = chat.words("make it blue", picture(0))
    assert large.image > 1024
    told = rf"{large.image} of its source image.* last 2 would change nothing"
    with pytest.raises(ConfigError, match=told):
        world.condition(world.encoder, [large], [[65]])
    trained = world.chat.words("make it blue", picture(0))  # in the size of the training
    red, blue = (world.condition(world.encoder, [trained], world.tokens(one)) for one in ("r", "b"))
    assert not torch.equal(red.embeds, blue.embeds)


def test_marks_in_a_completion_are_refused() -> None:
    world = World("edit")
    prompt = world.prompts(("a",))
    for mark in ("<|image_pad|>", "<|im_start|>", "<|im_end|>"):
        with pytest.raises(ValueError, match="has marks of the language model in it"):
            world.condition(world.encoder, prompt, world.tokens(f"a{mark}b"))


# The encoder ------------------------------------------------------------------------------------


def with_adapter(encoder: nn.Module, dropout: float) -> nn.Module:
    """A copy with a LoRA that changes what it computes."""
    adapted = copy.deepcopy(encoder)
    config = LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=dropout)
    inject_adapter_in_model(config, adapted)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.3, generator=generator)
    return adapted


def test_fault_dropout_and_train_mode_in_the_embedding_pass() -> None:
    world = World("text")
    adapted = with_adapter(world.encoder, dropout=0.5).train()
    adapted.model.language_model.norm.eval()
    modes = [module.training for module in adapted.modules()]
    prompts = world.prompts()
    first, second = (world.condition(adapted, prompts) for _ in range(2))
    assert torch.equal(first.embeds, second.embeds)
    assert [module.training for module in adapted.modules()] == modes
    without = with_adapter(world.encoder, dropout=0.0).eval()
    torch.testing.assert_close(world.condition(without, prompts).embeds, first.embeds, **PLAIN)


def test_adapters_are_on_and_there_are_no_gradients() -> None:
    world = World("text")
    prompts = world.prompts()
    adapted = world.condition(with_adapter(world.encoder, dropout=0.0), prompts)
    assert (adapted.embeds - world.condition(world.encoder, prompts).embeds).abs().max() > 1e-2
    assert not adapted.embeds.requires_grad


def test_modes_come_back_where_the_pass_fails() -> None:
    world = World("text")
    world.encoder.train()
    with (
        pytest.raises(TypeError),
        arguments_changed(world.encoder.model, lambda _: {"nonsense": 1}),
    ):
        world.condition(world.encoder, world.prompts())
    assert all(module.training for module in world.encoder.modules())


# The negative prompt ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "edit"])
def test_fault_negative_prompt_drifts_with_the_encoder(kind: Kind) -> None:
    world = World(kind)
    reference = copy.deepcopy(world.encoder)
    negative = Negative(world.chat, lambda prompts: world.condition(reference, prompts))
    sources = [picture(0), picture(1)] if world.edits else [None]
    before = negative.of(sources[0])
    with torch.no_grad():  # training goes on
        for parameter in world.encoder.model.language_model.parameters():
            parameter.mul_(1.5)
    for source in sources:  # one of them seen before, one new
        theirs = world.condition(world.encoder, [world.chat.nothing(source)])
        frozen = world.condition(reference, [world.chat.nothing(source)])
        found = negative.of(source)
        assert torch.equal(found.embeds, frozen.embeds)
        assert (found.embeds - theirs.embeds).abs().max() > 1e-2
    assert torch.equal(negative.of(sources[0]).embeds, before.embeds)


def test_the_negative_prompt_is_a_space_as_the_pipeline_reads_it_and_made_once() -> None:
    world = World("text")
    calls = []

    def encode(prompts: Any) -> Conditioned:
        calls.append(prompts)
        return world.condition(world.encoder, prompts)

    negative = Negative(world.chat, encode)
    embeds, _ = world.pipeline.encode_prompt(" ")
    for _ in range(2):
        torch.testing.assert_close(negative.of().embeds, embeds, **PLAIN)
    assert len(calls) == 1
    assert negative.of().repeated(3).embeds.shape == (3, embeds.shape[1], WIDTH)


def test_negatives_of_edits_are_as_many_as_their_images_and_bounded() -> None:
    world = World("edit")
    calls = []

    def encode(prompts: Any) -> Conditioned:
        calls.append(prompts)
        return world.condition(world.encoder, prompts)

    roomy, narrow = Negative(world.chat, encode), Negative(world.chat, encode, memory=0)
    for source in (picture(0), picture(1), picture(0)):
        roomy.of(source)
    assert len(calls) == 2
    for source in (picture(0), picture(0)):
        narrow.of(source)
    assert len(calls) == 4
    assert not torch.equal(roomy.of(picture(0)).embeds, roomy.of(picture(1)).embeds)


# Batches ----------------------------------------------------------------------------------------


def test_padding_on_the_left_ends_every_row_at_the_same_place() -> None:
    world = World("edit")
    inputs = inputs_of(world.chat, world.prompts(), side="left")
    assert set(inputs.ids[:, -1].tolist()) == {world.chat.tokenizer("\n")["input_ids"][0]}
    assert inputs.kinds.sum(1).tolist() == [prompt.image for prompt in world.prompts()]
    assert inputs.arguments()["mm_token_type_ids"] is inputs.kinds
    assert len(inputs.grid) == 3 if inputs.grid is not None else False


def test_an_edits_text_is_that_of_the_pipeline() -> None:
    world = World("edit")
    ids = world.prompts(("make it blue",))[0].ids
    pad = world.chat.image_pad
    single = [one for index, one in enumerate(ids) if one != pad or ids[index - 1] != pad]
    expected = world.pipeline.prompt_template_encode.format(f"{PICTURE}make it blue")
    assert world.chat.tokenizer.decode(single) == expected
