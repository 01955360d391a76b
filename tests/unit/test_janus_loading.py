"""Checkpoints that can be opened, and what is said of those that cannot."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import JanusForConditionalGeneration

from atelier.errors import ConfigError
from atelier.model_files import read_weights
from atelier.policies.janus.checks import answers_of, boi_of, require_tokens
from atelier.policies.janus.loading import load
from atelier.policies.janus.original_layout import to_original
from tests.support.random_janus import WIDE, Sizes, build_model, build_processor, likeliest_image

CODEBOOK = "model.vqmodel.quantize.embedding.weight"


def save(folder: Path, sizes: Sizes | None = None, seed: int = 3) -> Path:
    build_model(sizes, seed).save_pretrained(folder)
    build_processor(sizes).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("janus") / "checkpoint")


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    held = json.loads(file.read_text())
    edit(held)
    file.write_text(json.dumps(held))


# What works -------------------------------------------------------------------------------------


def test_weights_come_back_with_a_codebook_of_unit_rows(saved: Path) -> None:
    checkpoint = load(saved)
    expected, found = build_model().state_dict(), checkpoint.model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name == CODEBOOK:
            value = value / value.norm(dim=1, keepdim=True)
            torch.testing.assert_close(found[name], value)
        else:
            assert torch.equal(found[name], value), name
    assert not checkpoint.model.training
    assert checkpoint.model.config.text_config._attn_implementation == "sdpa"


def test_any_width(tmp_path: Path) -> None:
    checkpoint = load(save(tmp_path / "wide", WIDE))
    assert checkpoint.model.config.text_config.hidden_size == WIDE.width
    assert checkpoint.processor.num_image_tokens == WIDE.side**2


def test_the_image_tokenizer_stays_float32(saved: Path) -> None:
    model = load(saved, dtype="bfloat16").model
    expected = build_model().model.vqmodel.decoder.conv_in.weight
    assert torch.equal(model.model.vqmodel.decoder.conv_in.weight, expected)
    others = [
        one.dtype for name, one in model.named_parameters() if not name.startswith("model.vqmodel")
    ]
    assert set(others) == {torch.bfloat16}


def test_marks_are_the_tokenizers_and_generation_knows_them_even_after_a_save(
    saved: Path, tmp_path: Path
) -> None:
    checkpoint = load(saved)
    tokenizer = checkpoint.processor.tokenizer
    assert boi_of(tokenizer) == 3
    assert answers_of(tokenizer) == (7, 8)
    checkpoint.model.save_pretrained(tmp_path)
    again = JanusForConditionalGeneration.from_pretrained(tmp_path)
    assert again.generation_config.generation_kwargs == {"boi_token_id": 3}
    tokens = torch.tensor([[1, 9, 3]])
    codes = likeliest_image(again, tokens, tokens > 0, guidance_scale=2.0)
    assert codes.shape == (1, 16)


# Weights of another file ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["original", "transformers"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_another_files_weights_can_be_the_start(
    saved: Path, tmp_path: Path, layout: str, wrapped: bool
) -> None:
    other = build_model(seed=9)
    weights = other.state_dict()
    weights = to_original(weights) if layout == "original" else dict(weights)
    torch.save({"model": weights} if wrapped else weights, tmp_path / "post-sft.pth")
    found = load(saved, weights=tmp_path / "post-sft.pth").model.state_dict()
    for name, value in other.state_dict().items():
        if name != CODEBOOK:
            assert torch.equal(found[name], value), name


def test_weights_that_differ_are_not_tied_whatever_the_config_says(tmp_path: Path) -> None:
    folder = save(tmp_path / "tied", Sizes(tied=True))
    torch.save(to_original(build_model(seed=9).state_dict()), tmp_path / "untied.pth")
    torch.save(to_original(build_model(Sizes(tied=True), 9).state_dict()), tmp_path / "tied.pth")
    untied = load(folder, weights=tmp_path / "untied.pth").model
    tied = load(folder, weights=tmp_path / "tied.pth").model
    embedding = untied.model.language_model.embed_tokens.weight
    assert torch.equal(untied.lm_head.weight, build_model(seed=9).lm_head.weight)
    assert not torch.equal(untied.lm_head.weight, embedding)
    assert tied.lm_head.weight is tied.model.language_model.embed_tokens.weight
    untied.save_pretrained(tmp_path / "again")
    again = JanusForConditionalGeneration.from_pretrained(tmp_path / "again")
    assert torch.equal(again.lm_head.weight, untied.lm_head.weight)
    assert torch.equal(again.get_input_embeddings().weight, embedding)


def incomplete(weights: dict[str, Any]) -> None:
    del weights["gen_head.vision_head.bias"]


def too_many(weights: dict[str, Any]) -> None:
    weights["gen_vision_model.encoder.conv_blocks.9.res.0.norm1.weight"] = torch.ones(32)


def other_shape(weights: dict[str, Any]) -> None:
    weights["gen_embed.weight"] = torch.ones(7, 8)


def unknown(weights: dict[str, Any]) -> None:
    weights["value_head.weight"] = torch.ones(2)


def no_tensors(weights: dict[str, Any]) -> None:
    weights["step"] = 3


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (incomplete, r"1 of the model's weights are not there.*generation_head\.vision_head\.bias"),
        (too_many, r"1 weights that the model's config knows nothing of.*encoder\.down\.9"),
        (other_shape, r"does not fit the checkpoint's config.*generation_embeddings"),
        (unknown, r"value_head\.weight is no weight of a Janus model"),
        (no_tensors, r"something else than tensors by name"),
    ],
)
def test_other_weights_have_to_be_all_of_the_models(
    saved: Path, tmp_path: Path, damage: Callable[[dict[str, Any]], None], said: str
) -> None:
    weights: dict[str, Any] = to_original(build_model(seed=9).state_dict())
    damage(weights)
    torch.save(weights, tmp_path / "bad.pth")
    with pytest.raises(ConfigError, match=rf"(?s)bad\.pth: .*{said}"):
        load(saved, weights=tmp_path / "bad.pth")


def cast_to(dtype: torch.dtype) -> Callable[[dict[str, Any]], None]:
    def cast(weights: dict[str, Any]) -> None:
        weights.update({name: value.to(dtype) for name, value in weights.items()})

    return cast


def not_numbers(weights: dict[str, Any]) -> None:
    for value in weights.values():
        value.fill_(torch.nan)


def too_large_for_half(weights: dict[str, Any]) -> None:
    name = next(one for one in weights if one.endswith("lm_head.weight"))
    weights[name] = (weights[name] * 1e9).half()


def sparse(weights: dict[str, Any]) -> None:
    name = next(one for one in weights if one.endswith("lm_head.weight"))
    weights[name] = weights[name].to_sparse()


@pytest.mark.parametrize("layout", ["original", "transformers"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cast_to(torch.int8), r"model\.\S+ is stored as int8, and the model computes with real"),
        (cast_to(torch.bool), r"model\.\S+ is stored as bool"),
        (cast_to(torch.complex64), r"model\.\S+ is stored as complex64"),
        (not_numbers, r"model\.\S+ has values that are no numbers"),
        (too_large_for_half, r"lm_head\.weight has values that are no numbers"),
        (sparse, r"lm_head\.weight is no plain tensor"),
    ],
)
def test_weights_that_are_none_are_named(
    saved: Path, tmp_path: Path, layout: str, damage: Callable[[dict[str, Any]], None], said: str
) -> None:
    weights: dict[str, Any] = dict(build_model(seed=9).state_dict())
    if layout == "original":
        weights = to_original(weights)
    damage(weights)
    torch.save(weights, tmp_path / "bad.pth")
    with pytest.raises(ConfigError, match=rf"bad\.pth: .*{said}"):
        load(saved, weights=tmp_path / "bad.pth")


@pytest.mark.parametrize("layout", ["original", "transformers", "tied"])
@pytest.mark.parametrize("prefix", ["module.", "model.", "module.model."])
def test_what_training_code_puts_before_all_names_is_taken_off(
    saved: Path, tmp_path: Path, layout: str, prefix: str
) -> None:
    theirs = build_model(seed=9).state_dict()
    weights = to_original(theirs) if layout == "original" else dict(theirs)
    if layout == "tied":  # all that are left begin with model. by themselves
        weights["model.language_model.embed_tokens.weight"] = weights.pop("lm_head.weight")
    torch.save({prefix + name: value for name, value in weights.items()}, tmp_path / "w.pth")
    if layout == "tied":
        with pytest.raises(
            ConfigError, match=r"1 of the model's weights are not there, .* lm_head"
        ):
            load(saved, weights=tmp_path / "w.pth")
        return
    found = load(saved, weights=tmp_path / "w.pth").model.state_dict()
    assert all(torch.equal(found[name], theirs[name]) for name in theirs if name != CODEBOOK)


def test_a_file_of_an_old_torch_is_read(saved: Path, tmp_path: Path) -> None:
    theirs = build_model(seed=9).state_dict()
    torch.save(to_original(theirs), tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    found = load(saved, weights=tmp_path / "w.pth").model.state_dict()
    assert torch.equal(found["lm_head.weight"], theirs["lm_head.weight"])


@pytest.mark.parametrize("rows", [2, 4])
def test_a_projection_that_cannot_be_parted_is_named(
    saved: Path, tmp_path: Path, rows: int
) -> None:
    weights = to_original(build_model(seed=9).state_dict())
    name = next(one for one in weights if one.endswith("attn.qkv.weight"))
    torch.save({**weights, name: weights[name][:rows]}, tmp_path / "w.pth")
    with pytest.raises(ConfigError, match=rf"w\.pth: .*{name} \[{rows}, \d+\] is not three"):
        load(saved, weights=tmp_path / "w.pth")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_nothing_in_a_file_of_weights_is_executed(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"gen_embed.weight": Evil()}, tmp_path / "evil.pth")
    (tmp_path / "text.pth").write_text("no weights")
    for name in ("evil.pth", "text.pth", "absent.pth"):
        with pytest.raises(ConfigError, match=rf"{name}: is no file of weights"):
            load(saved, weights=tmp_path / name)
    assert "executed" not in capsys.readouterr().out


def with_pickle(weights: Path, change: Callable[[bytes], bytes]) -> None:
    """A file of torch.save whose archive is whole, and whose pickle is another."""
    with zipfile.ZipFile(weights) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(weights, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, change(content) if name.endswith("data.pkl") else content)


# A reader of pickles trips over each in its own way: what is got before it is put, taken from an
# empty stack, built or appended to what cannot be.
@pytest.mark.parametrize("pickled", [b"h\x07.", b"0.", b"N}b.", b"N)R.", b"NNa.", b"NNNs.", b"(u."])
def test_a_pickle_that_is_none_is_told(saved: Path, tmp_path: Path, pickled: bytes) -> None:
    file = tmp_path / "odd.pth"
    torch.save({"a": torch.ones(3)}, file)
    with_pickle(file, lambda _: b"\x80\x02" + pickled)
    with pytest.raises(ConfigError, match=r"odd\.pth: is no file of weights: \w+: "):
        load(saved, weights=file)


def test_damage_anywhere_in_a_pickle_is_told_or_none(tmp_path: Path) -> None:
    file = tmp_path / "odd.pth"
    torch.save({"a.b": torch.ones(3, 4), "c": torch.zeros(2)}, file)
    good, random = file.read_bytes(), np.random.default_rng(1)

    def damaged(pickled: bytes) -> bytes:
        changed = bytearray(pickled)
        changed[random.integers(len(changed))] = random.integers(256)
        return bytes(changed)

    refused = 0
    for _ in range(300):
        file.write_bytes(good)
        with_pickle(file, damaged)
        try:
            read_weights(file)
        except ConfigError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("held", [{1: torch.ones(2)}, {None: torch.ones(2)}, [torch.ones(2)]])
def test_weights_have_names(tmp_path: Path, held: Any) -> None:
    torch.save(held, tmp_path / "odd.pth")
    with pytest.raises(ConfigError, match=r"odd\.pth: holds something else than tensors by name"):
        read_weights(tmp_path / "odd.pth")


# What does not ----------------------------------------------------------------------------------


def test_what_is_no_janus_is_named(copied: Path, tmp_path: Path) -> None:
    change(copied / "config.json", lambda held: held.update(model_type="llama"))
    with pytest.raises(ConfigError, match=r"copy: is no Janus: .* model_type 'llama'"):
        load(copied)
    change(copied / "config.json", lambda held: held.update(model_type="multi_modality"))
    with pytest.raises(ConfigError, match=r"in the original layout of Janus.*docs/.*, Checkpoints"):
        load(copied)
    with pytest.raises(ConfigError, match="nowhere: cannot be loaded as Janus"):
        load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"a/b at revision v1: cannot be loaded as Janus"):
        load("a/b", revision="v1")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_damaged_files_are_told(copied: Path, name: str) -> None:
    file = copied / name
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ConfigError, match="copy: cannot be loaded as Janus"):
        load(copied)


def test_missing_weights_are_told(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    del weights["model.generation_embeddings.weight"]
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 of the model's weights.*generation_embeddings"):
        load(copied)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cast_to(torch.int8), r"model\.safetensors: \S+ is stored as I8"),
        (not_numbers, r"copy: \S+ has values that are no numbers"),
        (too_large_for_half, r"copy: lm_head\.weight has values that are no numbers"),
    ],
)
def test_a_checkpoint_s_own_weights_have_to_be_the_model_s_and_numbers(
    copied: Path, damage: Callable[[dict[str, Any]], None], said: str
) -> None:
    weights: dict[str, Any] = load_file(copied / "model.safetensors")
    damage(weights)
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=said):
        load(copied)


def test_weights_of_its_files_that_are_not_used_are_told(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights: dict[str, Any] = load_file(copied / "model.safetensors")
    unknown(weights)
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    load(copied)
    assert "copy: 1 weights of its files are not used, such as value_head.weight" in caplog.text


def test_a_dtype_too_narrow_for_the_weights_is_told(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    weights["lm_head.weight"] *= 1e9
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    load(copied, dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"lm_head\.weight .*infinite in float16.*wider dtype"):
        load(copied, dtype="float16")


def test_a_tokenizer_without_the_marks_is_told(copied: Path) -> None:
    change(
        copied / "tokenizer_config.json",
        lambda held: [held.pop(one, None) for one in ("pad_token",)],
    )
    with pytest.raises(ConfigError, match=r"its tokenizer has no pad_token"):
        load(copied)


def test_a_missing_mark_is_told() -> None:
    tokenizer = build_processor().tokenizer
    tokenizer.boi_token = None
    with pytest.raises(ConfigError, match=r"here: its tokenizer has no boi_token; boi_token"):
        require_tokens("here", tokenizer)


@pytest.mark.parametrize(
    ("file", "edit", "said"),
    [
        (
            "config.json",
            lambda held: held["vision_config"].update(num_image_tokens=15),
            "15 image tokens make no square",
        ),
        (
            "config.json",
            lambda held: held["vision_config"].update(num_image_tokens=9),
            "9 image tokens of 16 pixels make no image of 64 pixels",
        ),
        (
            "processor_config.json",
            lambda held: held.update(num_image_tokens=25),
            "its processor has 25 tokens an image, its model 16",
        ),
        (
            "processor_config.json",
            lambda held: held["image_processor"]["size"].update(height=32, width=32),
            "its image processor makes 32x32 pixels, its model sees 64",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_told(
    copied: Path, file: str, edit: Callable[[dict[str, Any]], object], said: str
) -> None:
    change(copied / file, edit)
    with pytest.raises(ConfigError, match=f"copy: {said}"):
        load(copied)


def test_a_tokenizer_of_more_tokens_than_the_model_knows_is_told(copied: Path) -> None:
    tokenizer = build_processor().tokenizer
    tokenizer.add_tokens([f"new{number}" for number in range(64)])
    tokenizer.save_pretrained(copied)
    last = 16 + 64  # of its 17 words and marks, and the new ones
    with pytest.raises(ConfigError, match=f"has a token {last}, its language model 64 of them"):
        load(copied)


def test_a_tokenizer_without_yes_and_no_cannot_judge() -> None:
    tokenizer = build_processor().tokenizer
    tokenizer.add_tokens(["yes", "no"])
    assert answers_of(tokenizer) == (7, 8)
    with pytest.raises(ConfigError, match="Yes and No are no single tokens"):
        answers_of(Wordless())


class Wordless:
    unk_token_id = 6

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [6]}
