"""What stands around a prompt, and how much of it is dropped."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from diffusers import QwenImageEditPlusPipeline, QwenImagePipeline
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from atelier.config.sections.qwen import ConditioningConfig
from atelier.data.prompts import Prompt
from atelier.errors import ConfigError, DataError
from atelier.policies.language.plain_text import require_plain
from atelier.policies.qwen.areas import Areas
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.templates import (
    PICTURE,
    PLANNING,
    Template,
    planning,
    stock,
    template_of,
)
from tests.support.qwen_vocabulary import published_tokenizer
from tests.support.random_qwen import SIDE, Kind, build_pipeline, build_tokenizer

SMALL = Areas(SIDE**2, SIDE**2)


def bare(kind: Kind) -> Any:
    """A pipeline without parts."""
    if kind == "text":
        return QwenImagePipeline(*[None] * 5)
    return QwenImageEditPlusPipeline(*[None] * 6)


def length(tokenizer: Any, text: str) -> int:
    return len(tokenizer(text)["input_ids"])


# Drop indices ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "drop"), [(stock, "text", 34), (stock, "edit", 64), (planning, "text", 60)]
)
def test_drop_index_of_the_published_vocabulary(make: Any, kind: Kind, drop: int) -> None:
    template = make(bare(kind))
    assert template.drop == drop
    assert template.count_dropped(published_tokenizer()) == drop


def test_fault_off_by_three() -> None:
    """The system block alone has three tokens fewer: those of the user header were never seen."""
    tokenizer = published_tokenizer()
    for kind, make, block in (("text", stock, 31), ("edit", stock, 61), ("text", planning, 57)):
        template = make(bare(kind))
        system, header = template.before.split("<|im_end|>\n")
        assert length(tokenizer, f"{system}<|im_end|>\n") == block
        assert header == "<|im_start|>user\n"
        assert template.count_dropped(tokenizer) == block + 3


def test_published_lengths_of_the_rest() -> None:
    tokenizer = published_tokenizer()
    assert length(tokenizer, stock(bare("text")).after) == 5
    assert length(tokenizer, "Picture 1: ") == 5
    assert length(tokenizer, PICTURE) == 8


@pytest.mark.parametrize(("kind", "drop"), [("text", 149), ("edit", 320)])
def test_drop_index_is_counted_with_another_vocabulary(kind: Kind, drop: int) -> None:
    template = stock(bare(kind))
    assert template.drop in (34, 64)
    assert template.count_dropped(build_tokenizer()) == drop


def test_a_template_that_contradicts_the_published_vocabulary_is_refused() -> None:
    wrong = dataclasses.replace(stock(bare("text")), drop=31)
    with pytest.raises(ConfigError, match=r"conditioning\.template: stock has 34 tokens .* 31"):
        wrong.count_dropped(published_tokenizer())


# The text ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "edit"])
def test_stock_text_is_the_pipelines_own(kind: Kind) -> None:
    pipeline = bare(kind)
    picture = PICTURE if kind == "edit" else ""
    expected = pipeline.prompt_template_encode.format(f"{picture}a red dog")
    assert stock(pipeline).text("  a red dog\n") == expected
    assert stock(pipeline).text("") == pipeline.prompt_template_encode.format(f"{picture} ")


def test_planning_has_its_own_sentence() -> None:
    text = planning(bare("text")).text("a red dog")
    assert text == (
        f"<|im_start|>system\n{PLANNING}<|im_end|>\n<|im_start|>user\na red dog<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    with pytest.raises(ConfigError, match="planning asks for an image from words"):
        planning(bare("edit"))


def test_a_template_of_ones_own() -> None:
    config = ConditioningConfig(template="own", system=" Paint. ")
    template = template_of(config, bare("edit"))
    assert template.text("make it blue") == (
        "<|im_start|>system\nPaint.<|im_end|>\n<|im_start|>user\n"
        f"{PICTURE}make it blue<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.drop is None
    assert template.count_dropped(published_tokenizer()) == 3 + 2 + 2 + 3


def test_marks_in_a_system_sentence_are_refused() -> None:
    config = ConditioningConfig(template="own", system="Paint.<|im_end|>")
    with pytest.raises(ConfigError, match=r"conditioning\.system: has <\|im_end\|>"):
        template_of(config, bare("text"))


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|image_pad|>", "<|endoftext|>"])
def test_marks_in_a_prompt_are_refused(mark: str) -> None:
    chat = Chat(build_pipeline(), stock(bare("text")))
    with pytest.raises(DataError, match=r"prompt 7: .*has <\|") as told:
        chat.prompt(Prompt(7, 0, f"a dog{mark}\n"))
    assert mark in str(told.value)
    require_plain("a < b | c > d <|", chat.tokenizer, "here")


# Tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "edit"])
def test_no_words_move_where_the_users_turn_begins(kind: Kind) -> None:
    """Whatever they are: their first token is the first that is kept."""
    tokenizers = [build_tokenizer(), published_tokenizer()]
    template = stock(bare(kind))
    before = [tokenizer(template.before)["input_ids"] for tokenizer in tokenizers]

    @given(st.text(max_size=12))
    def words_stay_behind(words: str) -> None:
        for tokenizer, ids in zip(tokenizers, before, strict=True):
            if any(mark in words for mark in tokenizer.all_special_tokens):
                continue
            assert tokenizer(template.text(words))["input_ids"][: len(ids)] == ids

    words_stay_behind()


def test_a_prompt_counts_its_tokens() -> None:
    pipeline = build_pipeline()
    prompt = Chat(pipeline, stock(pipeline)).words("a red dog")
    assert (prompt.drop, prompt.user, prompt.image) == (149, 9, 0)
    assert prompt.tail == len("0\n0assistant\n")
    assert prompt.kept == prompt.user + prompt.tail == len(prompt.ids) - 149


def test_an_edit_has_its_image_between_the_same_words_for_policy_and_transformer() -> None:
    pipeline = build_pipeline("edit")
    chat = Chat(pipeline, stock(pipeline), SMALL)
    prompt = chat.words("make it blue", Image.new("RGB", (2 * SIDE, SIDE), "red"))
    assert prompt.image == 8 == prompt.grid.prod() // 4
    text = pipeline.tokenizer.decode(prompt.ids[prompt.drop :])
    pads = "<|image_pad|>" * prompt.image
    assert text.startswith(f"Picture 1: <|vision_start|>{pads}<|vision_end|>make it blue<|im_end|>")
    assert prompt.user == len("Picture 1: ") + 2 + len("make it blue")


def test_an_image_is_seen_in_the_size_the_transformer_was_trained_with() -> None:
    """A square of any size has 196 tokens, not the 1369 of an image as large as 1024 x 1024."""
    pipeline = build_pipeline("edit")
    chat = Chat(pipeline, stock(pipeline))
    source = Image.new("RGB", (1024, 1024), "red")
    assert chat.seen(source).size == (384, 384)
    assert chat.words("make it blue", source).image == 196


def test_text_to_image_has_no_source_and_an_edit_has_one() -> None:
    for kind, source in (("text", Image.new("RGB", (8, 8))), ("edit", None)):
        pipeline = build_pipeline(kind)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="an edit has a source image"):
            Chat(pipeline, stock(pipeline)).words("a", source)


def test_a_template_is_a_value() -> None:
    assert Template("own", "a") == Template("own", "a")
    assert stock(bare("text")) != stock(bare("edit"))
