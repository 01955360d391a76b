"""Tiny Qwen-Image and its twin that edits: real pipelines, with the published tokens."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from atelier.config.facts.qwen import pipeline_kind, require_shifting
from atelier.data.edits import edit
from atelier.data.riddles import riddle
from atelier.data.scenes import prompt, sample_scene
from atelier.policies.pretraining.snapshots import SIZE_LIMIT, check_size
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.conditioning import Conditioning
from atelier.policies.qwen.environment import Environment, Sampling, Settings
from atelier.policies.qwen.pretrain.exam import Exam
from atelier.policies.qwen.pretrain.snapshot import save_pipeline
from atelier.policies.qwen.templates import planning, stock
from atelier.policies.qwen.tiny.parts import AREAS, KINDS, PRESET, SIDE, Kind, build_pipeline
from atelier.policies.qwen.tiny.tokenizer import cut_tokenizer, load_tokenizer
from tests.support.qwen_vocabulary import published_tokenizer

TOKENIZER = Path("assets/tiny-qwen-image/tokenizer")
ONE_GREY_LEVEL = 1  # float32 sums in another order, rounded to one of two neighbours


def tiny(kind: Kind) -> Any:
    """Untrained, but with weights large enough for a text to show in a picture."""
    pipeline = build_pipeline(load_tokenizer(TOKENIZER), kind, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in pipeline.transformer.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return pipeline


@pytest.fixture(scope="module", params=KINDS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    save_pipeline(tiny(request.param), folder)
    return request.param, folder


def loaded(folder: Path) -> Any:
    pipeline = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


# Tokens ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "kind", "drop"), [(stock, "text", 34), (stock, "edit", 64), (planning, "text", 60)]
)
def test_templates_are_as_long_as_for_the_published_pipelines(
    make: Any, kind: Kind, drop: int
) -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    pipeline = build_pipeline(tokenizer, kind)
    template = make(pipeline)
    assert template.count_dropped(tokenizer) == template.drop == drop
    assert len(tokenizer(template.after)["input_ids"]) == 5


def test_the_tokenizer_is_a_cut_of_the_published_one() -> None:
    whole, ours = published_tokenizer(), load_tokenizer(TOKENIZER)
    made = cut_tokenizer(whole)
    assert made.backend_tokenizer.to_str() == ours.backend_tokenizer.to_str()
    rng = random.Random(3)
    for _ in range(100):
        scene = sample_scene(rng, "shapes")
        for text in (prompt(scene), edit(scene, rng).instruction):
            for words in (text, riddle(text)):
                assert ours.tokenize(words) == whole.tokenize(words)


def test_words_of_the_world_are_one_token_each() -> None:
    tokenizer = load_tokenizer(TOKENIZER)
    for words in ("two red circles and one blue square", "replace the red cross with a brown one"):
        assert len(tokenizer.tokenize(words)) == len(words.split())
    text = "Größe 42 %, 日本\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


# Pipelines ---------------------------------------------------------------------------------------


def test_plain_diffusers_loads_them_in_float32(saved: Any) -> None:
    kind, folder = saved
    assert pipeline_kind(folder) == kind
    require_shifting(folder)
    assert check_size(folder) < SIZE_LIMIT
    parts = loaded(folder).components.items()
    dtypes = {name: one.dtype for name, one in parts if isinstance(one, torch.nn.Module)}
    assert dtypes == dict.fromkeys(("text_encoder", "transformer", "vae"), torch.float32)


def test_their_images_are_those_of_the_trainer(saved: Any) -> None:
    """Areas are set in their one named place, in the pipeline's own call too."""
    kind, folder = saved
    pipeline = loaded(folder)
    chat = Chat(pipeline, stock(pipeline), AREAS)
    source = Image.fromarray(picture()) if kind == "edit" else None
    words = "a red circle above a shape of two crossing bars"
    given = Conditioning(chat, 256)(pipeline.text_encoder, [chat.words(words, source)])
    settings = Settings(side=SIDE, window=256, preset=PRESET, areas=AREAS)
    environment = Environment(pipeline, settings, "cpu")
    sources = None if source is None else [source]
    (ours,) = environment.images(given, [7], Sampling(8), sources=sources)
    image = {} if source is None else {"image": source}
    with AREAS.applied(), torch.no_grad():
        pipeline.text_encoder.register_forward_pre_hook(with_kinds(chat), with_kwargs=True)
        theirs = pipeline(
            prompt=words,
            **image,
            negative_prompt=" ",
            true_cfg_scale=1.0,
            num_inference_steps=8,
            height=SIDE,
            width=SIDE,
            generator=torch.Generator().manual_seed(7),
        ).images[0]
    assert np.abs(ours.astype(int) - np.asarray(theirs).astype(int)).max() <= ONE_GREY_LEVEL
    assert ours.std() > 3


def with_kinds(chat: Chat) -> Any:
    """Says where the image is in the text, which diffusers 0.42 leaves out."""

    def hook(_: Any, args: Any, given: Any) -> Any:
        return args, {**given, "mm_token_type_ids": (given["input_ids"] == chat.image_pad).long()}

    return hook


def picture() -> np.ndarray:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (SIDE, SIDE, 3), generator=generator).to(torch.uint8).numpy()


def test_an_exam_paints_many_at_once_what_the_pipeline_paints(saved: Any) -> None:
    kind, folder = saved
    pipeline = loaded(folder)
    with ThreadPoolExecutor(1) as executor:
        exam = Exam(pipeline, kind, 4, 0, executor)
    written = exam.written(pipeline.text_encoder)
    ways = exam.ways(pipeline.text_encoder, written)
    with torch.no_grad():
        for given in ways.values():
            ours = exam.painted(pipeline.transformer, given).astype(int)
            theirs = exam.painted_by_pipeline(given).astype(int)
            assert np.abs(ours - theirs).max() <= ONE_GREY_LEVEL
    own, shuffled = (exam.painted(pipeline.transformer, ways[way]) for way in ("own", "shuffled"))
    assert np.abs(own.astype(int) - shuffled.astype(int)).max() > ONE_GREY_LEVEL
