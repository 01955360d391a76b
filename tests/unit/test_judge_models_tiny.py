"""The embedded judge's parts: a checkpoint like any other, a fast pass that equals the plain."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atelier.data.questions import DESCRIBE, NO, YES, all_questions
from atelier.data.render import render_batch
from atelier.data.scenes import sample_scene
from atelier.errors import ConfigError
from atelier.judge_models.local import LocalJudge
from atelier.judge_models.opening import first_tokens
from atelier.judge_models.tiny.examples import make_examples
from atelier.judge_models.tiny.model import (
    IMAGE,
    build_model,
    build_processor,
    build_tokenizer,
    patches,
)
from atelier.judge_models.tiny.network import text_logits
from atelier.judge_models.tiny.saving import save
from atelier.judge_models.tiny.training import UNASKED, _labels, tokenise

SCENES = [sample_scene(random.Random(number), "mixed") for number in range(3)]
PICTURES = render_batch(SCENES, [0, 1, 2])
QUESTIONS = [
    next(one for one in all_questions(scene, random.Random(1)) if one.kind == kind)
    for scene, kind in zip(SCENES, ("word", "caption", "colour"), strict=True)
]


@pytest.fixture(scope="module")
def model():
    """Untrained, but with weights large enough for every part to show in the answer."""
    built = build_model(build_tokenizer())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return built


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    save(model, folder)
    model.float()
    return folder


def chat(picture: np.ndarray, text: str) -> list[dict]:
    parts = [{"type": "image", "image": Image.fromarray(picture)}, {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def plain_inputs(processor, picture: np.ndarray, text: str):
    return processor.apply_chat_template(
        [chat(picture, text)],
        tokenize=True,
        add_generation_prompt=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "pt"},
    )


def test_words_of_questions_are_one_token_each() -> None:
    tokenizer = build_tokenizer()
    words = 'Is the word "KEM" left of the red crosses? Answer yes or no.'
    assert len(tokenizer.tokenize(words)) == 20
    assert tokenizer.encode(YES) == tokenizer.encode(f" {YES}")
    assert len(first_tokens(tokenizer, (YES, NO))) == 2


def test_any_text_is_spelled_and_comes_back() -> None:
    tokenizer = build_tokenizer()
    for text in ("Größe 42 %", "日本", "a\nb"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_fast_pass_equals_the_plain_one(model) -> None:
    tokenizer = build_tokenizer()
    processor, tokens = build_processor(tokenizer), tokenise(QUESTIONS, tokenizer)
    with torch.no_grad():
        fast = text_logits(model, torch.from_numpy(PICTURES), tokens.ids.long(), tokens.image)
        for row, (picture, question) in enumerate(zip(PICTURES, QUESTIONS, strict=True)):
            inputs = plain_inputs(processor, picture, question.text)
            length = int(tokens.begin[row])
            assert torch.equal(inputs.input_ids[0], tokens.ids[row, :length].long())
            plain = model(**inputs).logits[0]
            torch.testing.assert_close(fast[row, :length], plain, atol=1e-5, rtol=1e-5)


def test_patches_are_those_of_the_image_processor() -> None:
    processor = build_processor(build_tokenizer())
    ours = patches(torch.from_numpy(PICTURES))
    theirs = processor.image_processor([Image.fromarray(one) for one in PICTURES])
    torch.testing.assert_close(ours, torch.as_tensor(theirs["pixel_values"]), atol=1e-6, rtol=0)


def test_only_answers_are_learnt() -> None:
    tokenizer = build_tokenizer()
    scene = SCENES[0]
    asked = [one for one in all_questions(scene, random.Random(0)) if one.text == DESCRIBE]
    tokens = tokenise(asked + QUESTIONS, tokenizer)
    for question, labels in zip(asked + QUESTIONS, _labels(tokens), strict=True):
        learnt = tokenizer.decode(labels[labels != UNASKED].tolist())
        assert learnt.replace(" ", "") == f"{question.answer}<|im_end|>".replace(" ", "")


def test_examples_are_the_same_however_many_make_them() -> None:
    alone, together = (make_examples(600, "heldout", 3, workers) for workers in (1, 2))
    assert np.array_equal(alone.images, together.images)
    assert alone.questions == together.questions
    assert np.array_equal(alone.image_of, together.image_of)
    sizes = {key: len(own) for key, own in alone.by_kind().items()}
    assert sizes["word", YES] == sizes["word", NO] > 0
    assert sizes["describe", ""] == 600


def test_a_checkpoint_judges_alone_as_in_a_batch(checkpoint: Path, model) -> None:
    """Questions of different lengths are padded; images of other sizes are resized."""
    judge = LocalJudge(checkpoint, dtype="float32")
    pictures = [[Image.fromarray(one)] for one in PICTURES]
    texts = [one.text for one in QUESTIONS]
    together = judge.p_yes(pictures, texts)
    alone = [judge.p_yes([one], [text])[0] for one, text in zip(pictures, texts, strict=True)]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) == 3
    assert all(0 < one < 1 for one in together)

    inputs = plain_inputs(build_processor(build_tokenizer()), PICTURES[0], texts[0])
    tokenizer = build_tokenizer()
    with torch.no_grad():
        chances = model(**inputs).logits[0, -1].softmax(-1)
    yes, no = (
        sum(chances[tokenizer.convert_tokens_to_ids(w)] for w in (word, word.title(), word.upper()))
        for word in (YES, NO)
    )
    assert together[0] == pytest.approx(float(yes / (yes + no)), abs=1e-2)  # float16 weights

    large = judge.p_yes([[Image.new("RGB", (300, 200), "white")]], [texts[0]])
    assert 0 < large[0] < 1


def test_an_image_takes_sixteen_tokens(checkpoint: Path) -> None:
    processor = build_processor(build_tokenizer())
    inputs = plain_inputs(processor, PICTURES[0], "Is there a red circle?")
    image = processor.tokenizer.convert_tokens_to_ids(IMAGE)
    assert int((inputs.input_ids == image).sum()) == 16
    assert (checkpoint / "model.safetensors").stat().st_size < 5e6


def test_what_is_no_judge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        LocalJudge(tmp_path)
