"""The embedded Tiny SD3: tokens, text length, frozen codes, size, and the committed directory."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from atelier.data.scenes import VOCABULARY, prompt, sample_scene
from atelier.policies.pretraining.snapshots import SIZE_LIMIT, sample_grid
from atelier.policies.sd3.pretrain.reading import similarity
from atelier.policies.sd3.pretrain.snapshot import save_snapshot
from atelier.policies.sd3.tiny import TinySD3Sizes, build_pipeline, encode_prompts

ASSET = Path(__file__).parents[2] / "assets" / "tiny-sd3"
PROMPT = 'the word "KEM" in red'


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def pipeline() -> StableDiffusion3Pipeline:
    torch.set_num_threads(1)
    return build_pipeline()


@pytest.fixture(scope="module")
def saved(pipeline: StableDiffusion3Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "snapshot"
    images = np.zeros((32, 64, 64, 3), np.uint8)
    save_snapshot(pipeline, folder, sample_grid(images, [PROMPT] * 32, ["KEM"] * 32), {})
    return folder


def test_prompt_words_are_one_token_and_quoted_words_are_spelled(
    pipeline: StableDiffusion3Pipeline,
) -> None:
    tokenizer = pipeline.tokenizer
    tokens = tokenizer.convert_ids_to_tokens(tokenizer('the word "REDA" in red').input_ids)
    spelled = ["r", "e", "d", "a</w>"]
    assert tokens[1:-1] == ["the", "word", '"</w>', *spelled, '"</w>', "in", "red"]
    for word in VOCABULARY:
        assert len(tokenizer(word).input_ids) == 3
        assert len(tokenizer(word.upper()).input_ids) == 2 + len(word)


def test_every_scene_prompt_fits_and_is_known(pipeline: StableDiffusion3Pipeline) -> None:
    tokenizer = pipeline.tokenizer
    rng = random.Random(0)
    for kind, lengths in (("word", (2, 3, 4, 5)), ("shapes", (3,)), ("mixed", (2, 3, 4))):
        for length in lengths:
            for _ in range(50):
                ids = tokenizer(prompt(sample_scene(rng, kind, word_length=length))).input_ids
                assert len(ids) <= tokenizer.model_max_length == 16
                assert tokenizer.unk_token_id not in ids


@pytest.mark.parametrize("max_sequence_length", [1, 16, 77, 256, 512])
def test_third_encoder_is_one_zero_token_whatever_the_length(
    pipeline: StableDiffusion3Pipeline, max_sequence_length: int
) -> None:
    embeddings = pipeline.encode_prompt(
        [PROMPT],
        None,
        None,
        do_classifier_free_guidance=False,
        max_sequence_length=max_sequence_length,
    )[0]
    assert embeddings.shape == (1, 17, TinySD3Sizes().text_width)
    assert not embeddings[0, 16].any()
    assert torch.equal(embeddings, encode_prompts(pipeline, [PROMPT])[0])


def test_codes_have_unit_variance_and_tell_prompts_apart(
    pipeline: StableDiffusion3Pipeline,
) -> None:
    embeddings, pooled = encode_prompts(pipeline, [PROMPT, 'the word "KEN" in red'])
    assert embeddings[:, :16].std().item() == pytest.approx(1, abs=0.1)
    assert pooled.std().item() == pytest.approx(1, abs=0.1)
    # One letter changes its own token only, and the pooled vector as well.
    changed = (embeddings[0] != embeddings[1]).any(dim=-1)
    assert changed.nonzero().flatten().tolist() == [6]
    assert (pooled[0] - pooled[1]).std() > 0.1


def test_build_is_a_pure_function_of_the_seed(pipeline: StableDiffusion3Pipeline) -> None:
    again, other = build_pipeline(), build_pipeline(seed=1)
    for name in ("transformer", "vae", "text_encoder"):
        for left, right in zip(
            getattr(pipeline, name).parameters(), getattr(again, name).parameters(), strict=True
        ):
            assert torch.equal(left, right)
    weights = [part.transformer.context_embedder.weight for part in (pipeline, other)]
    assert not torch.equal(*weights)
    assert torch.equal(encode_prompts(pipeline, [PROMPT])[0], encode_prompts(other, [PROMPT])[0]), (
        "the text codes are fixed"
    )


def test_saved_in_half_precision_loads_in_full(
    pipeline: StableDiffusion3Pipeline, saved: Path
) -> None:
    assert size_of(saved) < SIZE_LIMIT - 50_000, "leave room for the card and the samples"
    loaded = StableDiffusion3Pipeline.from_pretrained(saved)
    for name in ("transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3"):
        assert getattr(loaded, name).dtype == torch.float32, name
    ours, theirs = encode_prompts(pipeline, [PROMPT]), encode_prompts(loaded, [PROMPT])
    for left, right in zip(ours, theirs, strict=True):
        assert torch.allclose(left, right, atol=4e-3)
    assert loaded.tokenizer(PROMPT).input_ids == pipeline.tokenizer(PROMPT).input_ids


def test_plain_call_makes_pictures(pipeline: StableDiffusion3Pipeline) -> None:
    pipeline.set_progress_bar_config(disable=True)
    lengths = []
    handle = pipeline.transformer.context_embedder.register_forward_hook(
        lambda _module, inputs, _output: lengths.append(inputs[0].shape[1])
    )
    images = pipeline([PROMPT] * 2, num_inference_steps=2, guidance_scale=1.0).images
    handle.remove()
    assert [image.size for image in images] == [(64, 64)] * 2
    assert lengths == [17, 17]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("KEM", 1.0), ("a ke m!", 1.0), ("KEN", 2 / 3), ("", 0.0), ("XXXXXXX", 0.0)],
)
def test_similarity_is_the_published_formula(text: str, expected: float) -> None:
    assert similarity(text, "KEM") == pytest.approx(expected)


def test_committed_model_is_whole_small_and_of_this_builder(
    pipeline: StableDiffusion3Pipeline,
) -> None:
    assert size_of(ASSET) <= SIZE_LIMIT
    assert (ASSET / "README.md").is_file()
    asset = StableDiffusion3Pipeline.from_pretrained(ASSET)
    assert asset.transformer.config.num_layers == pipeline.transformer.config.num_layers
    assert asset.vae.config.scaling_factor != 1.0, "the autoencoder was never trained"
    ours, theirs = encode_prompts(pipeline, [PROMPT]), encode_prompts(asset, [PROMPT])
    for left, right in zip(ours, theirs, strict=True):
        assert torch.allclose(left, right, atol=4e-3)
