"""Pre-training of Tiny Qwen-Image: what is taught, that it is learned, and the gate."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atelier.data.compound_check import check_compound
from atelier.data.compound_edits import compound_edit
from atelier.data.compound_words import instruction
from atelier.data.edit_check import check_edit
from atelier.data.edits import edit
from atelier.data.gold import check
from atelier.data.render import render, render_objects
from atelier.data.riddles import riddle
from atelier.data.scenes import content_key, prompt, sample_scene
from atelier.errors import DataError
from atelier.policies.pretraining.snapshots import LOG, RECORD, SAMPLES
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.conditioning import Conditioning
from atelier.policies.qwen.pretrain import autoencoder, promote
from atelier.policies.qwen.pretrain.exam import GATE, failures
from atelier.policies.qwen.pretrain.options import (
    AutoencoderOptions,
    PainterOptions,
    WriterOptions,
)
from atelier.policies.qwen.pretrain.painter import (
    PainterTrainer,
    Pictures,
    shifted,
    trained_velocity,
    velocity,
)
from atelier.policies.qwen.pretrain.run import (
    BEST,
    pretrain_autoencoder,
    pretrain_painter,
    pretrain_writer,
)
from atelier.policies.qwen.pretrain.tellings import Told, conditions, tellings
from atelier.policies.qwen.pretrain.words import (
    EDIT_FRAMES,
    FRAMES,
    Reader,
    bare,
    careless,
    framed,
    meaning,
    nearly,
    solved,
)
from atelier.policies.qwen.pretrain.world import arranged, make_cases, settled, settled_steps
from atelier.policies.qwen.pretrain.writer import WriterTrainer, lessons
from atelier.policies.qwen.templates import stock
from atelier.policies.qwen.tiny.parts import (
    AREAS,
    KINDS,
    Kind,
    build_autoencoder,
    build_pipeline,
    build_transformer,
)
from atelier.policies.qwen.tiny.tokenizer import load_tokenizer
from tests.support.pretraining import pretrain_here

TOKENIZER = Path("assets/tiny-qwen-image/tokenizer")
HERE = {"device": "cpu", "workers": 1, "budget_seconds": 1e9}
OUT = Path("out")  # not written to
RNG = random.Random(0)
SCENES = [sample_scene(RNG, "shapes") for _ in range(200)]
EDITS = [edit(one, RNG) for one in SCENES]


@pytest.fixture(scope="module")
def executor() -> Any:
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as threads:
        yield threads


def chat_of(kind: Kind) -> tuple[Any, Chat]:
    pipeline = build_pipeline(load_tokenizer(TOKENIZER), kind)
    return pipeline, Chat(pipeline, stock(pipeline), AREAS)


# Words and pictures ------------------------------------------------------------------------------


def test_a_riddle_is_solved_by_who_knows_all_clues() -> None:
    several = [instruction(compound_edit(RNG, level)) for level in (2, 3, 8) for _ in range(30)]
    for text in [*map(prompt, SCENES), *(one.instruction for one in EDITS), *several]:
        assert solved(riddle(text), meaning) == text
        assert solved(text, meaning) == text


def test_a_reader_takes_some_clues_for_others() -> None:
    reader = Reader((1.0, 0.5, 0.25), random.Random(1))
    first, second, third = (
        Counter(reader(clue) for _ in range(2000)) for clue in ("coal", "a raven", "the night")
    )
    assert set(first) == {"black"}
    assert 0.45 < second["black"] / 2000 < 0.55
    assert len(second) == 6
    assert set(third) == {"black", "red"}
    assert 0.2 < third["black"] / 2000 < 0.3


def test_frames_hold_what_they_are_put_around() -> None:
    rng = random.Random(2)
    for frames in (FRAMES, EDIT_FRAMES):
        said = {framed("two red circles", frames, rng) for _ in range(200)}
        assert len(said) == len(frames)
        assert {bare(one, frames) for one in said} == {"two red circles"}


def test_what_is_nearly_said_differs_in_names_alone() -> None:
    rng, text = random.Random(3), "two red circles and one blue cross"
    found = {nearly(text, rng) for _ in range(100)}
    assert text in found
    assert len(found) > 20
    assert all(len(one.split()) == 7 and one.split()[::4] != [] for one in found)
    assert len(careless(text, rng).split()) == 6


def test_pictures_are_right_and_in_few_orders() -> None:
    rng, places = random.Random(4), set()
    for scene in SCENES:
        made = arranged(scene, rng)
        assert all(check(render(made), scene).facts.values())
        if scene.relation is None and len(scene.objects) == 4:
            places.add(tuple(item.cell for item in made.objects))
    assert 1 < len(places) <= 4
    for one in map(settled, EDITS):
        assert all(check_edit(render(one.target), one).facts.values())
    for level in (2, 3):
        for _ in range(50):
            made = settled_steps(compound_edit(rng, level))
            facts = check_compound(render_objects(made.target), made).facts
            assert all(facts.values())


def test_cases_are_the_same_however_many_make_them(executor: Any) -> None:
    with ThreadPoolExecutor(3) as others:
        for kind in KINDS:
            first, second = (make_cases(one, kind, 600, "train", 5) for one in (executor, others))
            assert first.plain == second.plain
            assert np.array_equal(first.images, second.images)
    heldout = make_cases(executor, "text", 200, "heldout", 5)
    train = {content_key(one) for one in make_cases(executor, "text", 600, "train", 5).truths}
    assert train.isdisjoint(map(content_key, heldout.truths))


# What the transformer is taught ------------------------------------------------------------------


def test_completions_alone_say_what_is_in_the_picture(executor: Any) -> None:
    plain = [prompt(one) for one in SCENES]
    told = tellings(plain, False, 20, 0)
    assert len(told) == 20 * len(plain)
    true = [one for one in told if one.words in (plain[one.case], riddle(plain[one.case]))]
    assert 0.3 < len(true) / len(told) < 0.55
    for one in told:
        if one.completion is not None and plain[one.case] not in one.completion:
            assert one.words not in (plain[one.case], riddle(plain[one.case]))  # left out
    silent = [one for one in told if one.completion is None]
    assert 0.06 < len(silent) / len(told) < 0.14


@pytest.mark.parametrize("kind", KINDS)
def test_conditions_are_those_of_the_trainer(kind: Kind, executor: Any) -> None:
    pipeline, chat = chat_of(kind)
    cases = make_cases(executor, kind, 3, "train", 6)
    words = [riddle(cases.plain[0]), "please read the words", riddle(cases.plain[2])]
    said = [cases.plain[0], None, f"{cases.plain[2]}."]
    told = [Told(*both, index) for index, both in enumerate(zip(words, said, strict=True))]
    sources = None if cases.sources is None else torch.from_numpy(cases.sources)
    found = conditions(pipeline.text_encoder, chat, told, sources, "cpu")
    conditioning = Conditioning(chat, 256)
    for index, one in enumerate(told):
        source = None if cases.sources is None else Image.fromarray(cases.sources[index])
        written = None
        if one.completion is not None:
            written = [chat.tokenizer(one.completion)["input_ids"]]
        theirs = conditioning(pipeline.text_encoder, [chat.words(one.words, source)], written)
        assert theirs.lengths == (int(found.lengths[index]),)
        ours = found.embeds[index, : theirs.lengths[0]].float()
        torch.testing.assert_close(ours, theirs.embeds[0], atol=2e-3, rtol=2e-3)


# Trainings learn ---------------------------------------------------------------------------------


def test_the_autoencoder_learns_and_is_the_librarys(executor: Any) -> None:
    images = make_cases(executor, "text", 8, "train", 7).images
    model = build_autoencoder()
    options = AutoencoderOptions(out=OUT, **HERE, batch=4, ema_decay=0.5)
    trainer = autoencoder.AutoencoderTrainer(model, torch.from_numpy(images), options)
    losses = [trainer.train_step(0.0)["loss"].item() for _ in range(12)]
    assert losses[-1] < 0.97 * losses[0]
    left = trainer.average
    autoencoder.forget_time(left)
    autoencoder.set_units(left, torch.from_numpy(images))
    pixels = autoencoder.to_pixels(torch.from_numpy(images[:2]))
    with torch.no_grad():
        ours, theirs = autoencoder.moments(left, pixels)[0], left.encode(pixels[:, :, None])
        torch.testing.assert_close(ours, theirs.latent_dist.mean[:, :, 0], atol=1e-5, rtol=1e-4)
        decoded = left.decode(theirs.latent_dist.mean).sample[:, :, 0]
        torch.testing.assert_close(
            autoencoder.decoded_latents(left, ours), decoded, atol=1e-5, rtol=1e-4
        )
    tokens = autoencoder.encode(left, torch.from_numpy(images)).float()
    assert tokens.shape == (8, 64, 16)
    assert abs(tokens.mean().item()) < 0.1
    unpacked = autoencoder.unpacked(tokens)
    assert torch.equal(autoencoder.packed(unpacked), tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_the_writer_learns(kind: Kind, executor: Any) -> None:
    pipeline, chat = chat_of(kind)
    cases = make_cases(executor, kind, 8, "train", 8)
    options = WriterOptions(out=OUT, **HERE, kind=kind, batch=8, warmup_steps=1, readings=2)
    taught = lessons(chat, cases, options)
    texts = [chat.tokenizer.decode(row) for row in taught.conversations.tokens[:4]]
    assert all("<|im_start|>assistant\n" in one for one in texts)
    sources = None if cases.sources is None else torch.from_numpy(cases.sources)
    trainer = WriterTrainer(pipeline.text_encoder, taught, sources, options)
    losses = [trainer.train_step(0.0) for _ in range(12)]
    for part in ("text", "echo"):
        assert losses[-1][part] < 0.9 * losses[0][part]


@pytest.mark.parametrize("kind", KINDS)
def test_the_painter_learns(kind: Kind, executor: Any) -> None:
    pipeline, chat = chat_of(kind)
    cases = make_cases(executor, kind, 4, "train", 9)
    sources = None if cases.sources is None else torch.from_numpy(cases.sources)
    told = tellings(cases.plain, chat.edits, 2, 0)
    given = conditions(pipeline.text_encoder, chat, told, sources, "cpu")
    vae = pipeline.vae
    targets = autoencoder.encode(vae, torch.from_numpy(cases.images))
    before = None if sources is None else autoencoder.encode(vae, sources)
    options = PainterOptions(
        **HERE, out=OUT, autoencoder=OUT, writer=OUT, kind=kind, batch=8, warmup_steps=1
    )
    trainer = PainterTrainer(build_transformer(), Pictures(targets, before), given, options)
    losses = [trainer.train_step(0.0).item() for _ in range(25)]
    assert np.mean(losses[-4:]) < 0.95 * np.mean(losses[:3])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_is_what_the_pipelines_ask_for(kind: Kind) -> None:
    transformer = build_transformer()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in transformer.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
        tokens, source = torch.randn(2, 3, 64, 16, generator=generator)
        embeds = torch.randn(3, 8, 96, generator=generator)
        mask = torch.arange(8) < torch.tensor([8, 3, 5])[:, None]
        given = (tokens, source if kind == "edit" else None, torch.rand(3), embeds, mask)
        ours, theirs = trained_velocity(transformer, *given), velocity(transformer, *given)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert theirs.std() > 0.1


def test_noise_levels_are_as_dense_as_those_sampled_at() -> None:
    levels = shifted(torch.linspace(1, 1 / 8, 8, dtype=torch.float64))
    expected = [1, 0.954545, 0.9, 0.833333, 0.75, 0.642857, 0.5, 0.3]
    assert levels.tolist() == pytest.approx(expected, abs=1e-6)


# The whole, in small -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind, out = request.param, tmp_path_factory.mktemp("pretraining")
    tiny = {**HERE, "heldout": 3, "batch": 4, "steps": 2}
    parts = {name: out / name for name in ("autoencoder", "writer")}
    pretrain_here(
        pretrain_autoencoder, AutoencoderOptions(out=parts["autoencoder"], **tiny, images=8)
    )
    pretrain_here(pretrain_writer, WriterOptions(out=parts["writer"], kind=kind, **tiny, cases=6))
    options = PainterOptions(out=out / "painter", kind=kind, **parts, **tiny, cases=6)
    pretrain_here(pretrain_painter, options)
    return out / "painter" / BEST


def test_a_pipeline_is_left_with_what_became_of_it(trained: Path) -> None:
    record = json.loads((trained / RECORD).read_text())
    assert record["snapshot"]["step"] == 2
    assert set(GATE) <= set(record["snapshot"])
    assert record["snapshot"]["gate"]
    assert record["parts"]["writer"]["snapshot"]["step"] == 2
    assert (trained / SAMPLES).is_file()
    assert json.loads((trained.parent / LOG).read_text())["curve"] == record["curve"]
    config = json.loads((trained / "vae/config.json").read_text())
    assert config["latents_std"] != [1.0] * 4


def test_an_untrained_pipeline_does_not_pass_the_gate(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not pass the gate: own: 0\.000.*true: 0\.000"):
        promote.promote_snapshot(trained, tmp_path / "asset", heldout=3)
    assert not (tmp_path / "asset").exists()


def test_one_that_passes_gets_its_card(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = {"own": 0.5, "none": 0.0, "shuffled": 0.1, "true": 0.9}
    measured = {"heldout": 3, "ceiling": 1.0, "right completions": 0.55, **shares}
    monkeypatch.setattr(promote, "measure", lambda *_: measured)
    promote.promote_snapshot(trained, tmp_path / "asset", heldout=3)
    text = (tmp_path / "asset/README.md").read_text()
    assert "| own | 0.500 | 0.4 to 0.7 |" in text
    assert "pretrain writer --out DIR" in text
    with pytest.raises(DataError, match="no snapshot"):
        promote.promote_snapshot(tmp_path, tmp_path / "other", heldout=3)


def test_the_gate_wants_completions_to_matter() -> None:
    good = {"own": 0.5, "none": 0.0, "shuffled": 0.01, "true": 0.9}
    assert failures(good) == []
    for way, value in (("own", 0.8), ("own", 0.3), ("none", 0.3), ("shuffled", 0.4), ("true", 0.7)):
        (failure,) = failures({**good, way: value})
        assert failure.startswith(f"{way}: {value:.3f}")
