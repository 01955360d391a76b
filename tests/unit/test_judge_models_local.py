"""A judge in this process is any vision-language model: here a small, untrained InternVL."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import (
    GotOcr2ImageProcessor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    Qwen2Tokenizer,
)

from atelier.judge import JsonForm, Question, YesNoForm
from atelier.judge_models.local import LocalJudge, Readied, batches

SPECIAL = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>", "<|im_start|>", "<|im_end|>")
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% for p in m['content'] %}{% if p['type'] == 'image' %}<IMG_CONTEXT>\n"
    "{% else %}{{ p['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> Qwen2Tokenizer:
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Qwen2Tokenizer(
        vocab={piece: index for index, piece in enumerate(alphabet)},
        merges=[],
        unk_token=None,
        pad_token="<|im_end|>",
        extra_special_tokens={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    )
    made.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    made.add_tokens(["yes", "no", "Yes", "No"])
    made.chat_template = CHAT
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("internvl")
    words = tokenizer()
    side, patch = 28, 7  # 16 patches, 4 tokens
    config = InternVLConfig(
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": [side, side],
            "patch_size": [patch, patch],
        },
        text_config={
            "model_type": "qwen2",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "vocab_size": len(words),
        },
        image_token_id=words.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    torch.manual_seed(0)
    model = InternVLForConditionalGeneration(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    model.save_pretrained(folder)
    InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size={"height": side, "width": side}),
        tokenizer=words,
        video_processor=InternVLVideoProcessor(size={"height": side, "width": side}),
        image_seq_length=4,
        chat_template=CHAT,
    ).save_pretrained(folder)
    return folder


def asked(colours: list[str], sides: tuple[int, int] = (28, 28)) -> list[Question]:
    return [
        Question(f"Is it {colour}?", YesNoForm(), [Image.new("RGB", sides, colour)])
        for colour in colours
    ]


def test_internvl_answers_yes_or_no(checkpoint):
    judge = LocalJudge(checkpoint, "cpu")
    answers = judge.ask(asked(["red", "green", "white", "red"]))
    found = [one.numbers["p_yes"] for one in answers]
    assert all(0 < value < 1 for value in found)
    assert found[0] == pytest.approx(found[3], abs=1e-6)
    assert len({round(value, 5) for value in found}) == 3, "it looks at the image and the text"


def test_one_question_is_answered_like_many_and_as_the_model_itself_does(checkpoint):
    judge = LocalJudge(checkpoint, "cpu")
    questions = asked(["red", "green", "blue"])
    together = [one.numbers["p_yes"] for one in judge.ask(questions)]
    alone = [judge.ask([one])[0].numbers["p_yes"] for one in questions]
    assert together == pytest.approx(alone, abs=1e-5)


def test_source_and_edited_image_are_shown_in_their_order(checkpoint):
    judge = LocalJudge(checkpoint, "cpu")
    red, blue = (Image.new("RGB", (28, 28), colour) for colour in ("red", "blue"))
    both = [Question("Kept?", YesNoForm(), images) for images in ([red, blue], [blue, red])]
    first, second = (one.numbers["p_yes"] for one in judge.ask(both))
    assert first != pytest.approx(second, abs=1e-5)


def test_what_needs_words_is_missing(checkpoint):
    from pydantic import BaseModel

    class Graded(BaseModel):
        score: int

    judge = LocalJudge(checkpoint, "cpu")
    word = Question("Grade it.", JsonForm(Graded), [Image.new("RGB", (28, 28))])
    yes, graded = judge.ask([*asked(["red"]), word])
    assert yes.missing is None
    assert "yes or no only" in graded.missing


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([(64, 64)] * 5, 2, [2, 2, 1]),
        ([(1024, 1024)] * 40, 256, [32, 8]),
        ([(64, 64), (8192, 8192), (64, 64)], 256, [1, 1, 1]),
        ([], 256, []),
    ],
)
def test_questions_are_put_together_by_number_and_by_pixels(
    sizes: list[tuple[int, int]], most: int, expected: list[int]
) -> None:
    asked = [Readied([Image.new("RGB", size)], str(place)) for place, size in enumerate(sizes)]
    found = list(batches(asked, most))
    assert [len(one) for one in found] == expected
    assert [one for batch in found for one in batch] == asked
