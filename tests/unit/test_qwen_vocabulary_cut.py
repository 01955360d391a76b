"""A tokenizer that is cut down tokenizes its texts as the whole does."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from atelier.data.riddles import riddle
from atelier.data.scenes import prompt, sample_scene
from atelier.policies.qwen.tiny.vocabulary import cut

BEGIN, END = "<|im_start|>", "<|im_end|>"


def scene_prompts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [prompt(sample_scene(rng, rng.choice(["shapes", "word"]))) for _ in range(count)]


@pytest.fixture(scope="module")
def whole() -> Tokenizer:
    """Trained on far more than is kept."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = scene_prompts(300, seed=1)
    texts += [riddle(one) for one in texts]
    texts += [one.upper() for one in texts] + [one[::-1] for one in texts]
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in (BEGIN, END, "<x>")])
    return tokenizer


def test_its_texts_are_the_same_tokens(whole: Tokenizer) -> None:
    texts = [f"{BEGIN}user\n{riddle(one)}{END}\n" for one in scene_prompts(50, seed=2)]
    small = cut(whole, texts, [BEGIN, END])
    assert small.get_vocab_size() < whole.get_vocab_size() / 2
    for text in texts:
        assert small.encode(text).tokens == whole.encode(text).tokens


def test_any_other_text_comes_back(whole: Tokenizer) -> None:
    small = cut(whole, ["a red circle"], [BEGIN, END])
    text = "Zebras: \u65e5\u672c, \u03a9 and 12\n\tA RED circle"
    assert small.decode(small.encode(text).ids) == text
    assert len(small.encode(text).ids) > len(whole.encode(text).ids)


def test_marks_stand_behind_everything_and_are_not_spelled(whole: Tokenizer) -> None:
    small = cut(whole, [f"{BEGIN}a red circle{END}"], [BEGIN, END])
    size = small.get_vocab_size()
    assert [small.token_to_id(mark) for mark in (BEGIN, END)] == [size - 2, size - 1]
    assert small.token_to_id("<x>") is None
    assert small.encode(f"{BEGIN}red{END}").ids[0] == size - 2
    with pytest.raises(ValueError, match="<y>"):
        cut(whole, ["a"], ["<y>"])
