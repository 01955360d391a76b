"""The embedded DeepGen before and in pre-training."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL

from atelier.config.facts.connector_fit import require_fitting
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.data.prompts import Prompt
from atelier.errors import DataError
from atelier.policies.deepgen.inputs import Reader
from atelier.policies.deepgen.layout import Model
from atelier.policies.deepgen.policy import DeepGenPolicy
from atelier.policies.deepgen.pretrain.exam import Exam
from atelier.policies.deepgen.pretrain.options import Options
from atelier.policies.deepgen.pretrain.promote import promote_snapshot
from atelier.policies.deepgen.pretrain.run import pretrain
from atelier.policies.deepgen.pretrain.snapshot import load_snapshot, save_snapshot
from atelier.policies.deepgen.pretrain.trainer import Trainer, trained_parts
from atelier.policies.deepgen.source import open_source
from atelier.policies.deepgen.tiny.parts import AUTOENCODER, TOKENIZER, build_model
from atelier.policies.deepgen.transformer import masked
from atelier.policies.pretraining.snapshots import (
    LOG,
    PLACES,
    RECORD,
    SAMPLES,
    SIZE_LIMIT,
    check_size,
)
from atelier.policies.qwen.tiny.tokenizer import load_tokenizer
from tests.support.pretraining import pretrain_here

HERE = {"device": "cpu", "workers": 1, "budget_seconds": 1e9, "compile": False}
TINY = {
    **{"images": 12, "evaluate_prompts": 2, "batch": 4, "steps": 3, "warmup_steps": 1},
    **{"evaluate_seconds": 1e9, "evaluate_steps": 2},
}
WORDS = 'the word "KEM" in red above two blue circles'


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> Model:
    vae = AutoencoderKL.from_pretrained(AUTOENCODER, subfolder="vae")
    built = build_model(load_tokenizer(TOKENIZER), vae.requires_grad_(False))
    masked(built.transformer)
    return built


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretraining")
    pretrain_here(pretrain, Options(out=out, **HERE, **TINY))
    return out


def test_the_parts_fit_and_the_whole_is_small_enough(model: Model, tmp_path: Path) -> None:
    require_fitting(model.bridge.shape, model.vlm.config.to_dict(), model.transformer.config)
    assert model.bridge.shape.states == 2 * 64, "the 7th and the 1st of 8 layers"
    save_snapshot(model, tmp_path / "model")
    assert check_size(tmp_path / "model") < SIZE_LIMIT - 60_000, "with its samples and records"


def test_a_prompt_is_spelled_where_it_has_to_be(model: Model) -> None:
    reader = Reader(model.tokenizer, model.template, model.vlm, 8)
    ids = reader.asked(WORDS).ids
    assert WORDS in model.tokenizer.decode(ids)
    pieces = [model.tokenizer.decode([one]) for one in ids]
    assert {"K", "E", "M"} <= set(pieces), "letters by themselves"
    assert {" red", " circles"} <= set(pieces), "words as one"
    assert len(ids) < 60


def test_an_image_is_learned_by_heart(model: Model) -> None:
    """By all three parts at once, from two pictures with prompts of two lengths."""
    options = Options(
        out=Path("out"), **HERE, batch=16, learning_rate=3e-3, warmup_steps=5, ema_decay=0.5
    )
    reader = Reader(model.tokenizer, model.template, model.vlm, 8)
    inputs = reader.inputs([reader.asked(one) for one in ("a red circle", WORDS, "")])
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 4, 16, 16, generator=generator)
    trainer = Trainer(model, (mean, torch.zeros_like(mean)), inputs, options)
    before = {name: one.detach().clone() for name, one in trainer.parts.named_parameters()}
    losses = [float(trainer.train_step()) for _ in range(60)]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    moved = {
        name.split(".")[0]
        for name, one in trainer.parts.named_parameters()
        if not torch.equal(one, before[name])
    }
    assert moved == {"transformer", "vlm", "bridge"}
    still = [name for name in before if name.startswith("vlm.model.visual.")]
    parameters = dict(trainer.parts.named_parameters())
    assert all(torch.equal(parameters[name], before[name]) for name in still), "it never looks"


def test_the_exam_has_words_and_shapes_and_true_pictures_pass(model: Model) -> None:
    with ThreadPoolExecutor(1) as executor:
        exam = Exam(model, 12, 3, executor)
        assert [one.kind for one in exam.scenes] == ["word"] * 12 + ["shapes"] * 12
        found = exam.renders()
        assert found["facts"] == found["right"] == 1
        assert found["similarity"] > 0.85
        blank, notes = exam.scores(np.full((24, 64, 64, 3), 255, np.uint8))
    assert blank["similarity"] == 0
    assert blank["right"] == 0
    assert len(notes) == 24


def test_the_exam_paints_what_a_policy_paints(trained: Path) -> None:
    """From the same noise, with guidance: the trainer's path is the policy's."""
    snapshot = max(trained.glob("step-*"))
    settings = {
        "policy": {"family": "deepgen", "path": str(snapshot)},
        "evaluation": {"num_inference_steps": 3, "guidance_scale": 2.0},
    }
    policy = DeepGenPolicy.load(RunConfig.model_validate(settings), "cpu")
    source = open_source(PolicyConfig(family="deepgen", path=str(snapshot)))
    parts = (source.transformer("float32"), source.vae(), source.scheduler())
    others = (source.vlm("float32"), source.bridge(), source.tokenizer(), source.template())
    model = Model(*parts, *others)
    masked(model.transformer)
    with ThreadPoolExecutor(1) as executor:
        exam = Exam(model, 2, 5, executor)
    ours = exam.paint(trained_parts(model), 3, 2.0)
    prompts = [Prompt(index, 0, text) for index, text in enumerate(exam.prompts)]
    theirs = policy.generate_from(policy.module, prompts, exam._noise)
    assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_a_snapshot_is_left_at_the_end_and_promoted(trained: Path, tmp_path: Path) -> None:
    (snapshot,) = trained.glob("step-000003-*")
    record = json.loads((snapshot / RECORD).read_text())
    assert record["curve"][-1] == record["snapshot"]
    assert record["ceiling"]["right"] == 1
    assert set(record["parameters"]) == {"transformer", "vae", "vlm", "connector"}
    assert json.loads((trained / LOG).read_text())["curve"] == record["curve"]
    assert (snapshot / SAMPLES).is_file()
    for part in ("transformer", "vae", "vlm"):
        (file,) = (snapshot / part).glob("*.safetensors")
        assert file.stat().st_size < 3_500_000
    promote_snapshot(snapshot, tmp_path / "asset", prompts=2)
    text = (tmp_path / "asset/README.md").read_text()
    assert "train --out DIR --device cpu --workers 1 --budget-seconds" in text
    assert "3 steps of rectified flow with batch 4" in text
    assert "(2 of words and as many of shapes" in text
    assert "| no guidance |" in text
    assert "| true renders | 1.000 | 1.000 | 1.000 | 1.000 |" in text
    assert "of another run" not in text
    for file in (tmp_path / "asset").rglob("*config.json"):
        assert not set(PLACES) & json.loads(file.read_text()).keys(), file
    with pytest.raises(DataError, match="no snapshot"):
        promote_snapshot(trained, tmp_path / "other", prompts=2)


def test_a_training_goes_on_from_a_snapshot(trained: Path, tmp_path: Path) -> None:
    """At a rate of 0 it writes what it began with."""
    (start,) = [folder for folder in trained.iterdir() if folder.is_dir()]
    out = tmp_path / "further"
    pretrain_here(
        pretrain, Options(out=out, start=start, **HERE, **{**TINY, "steps": 1}, learning_rate=0.0)
    )
    (end,) = [folder for folder in out.iterdir() if folder.is_dir()]
    weights, begun = load_snapshot(end).modules(), load_snapshot(start).modules()
    for name, part in weights.items():
        for key, value in part.state_dict().items():
            assert torch.equal(value, begun[name].state_dict()[key]), f"{name}.{key}"
    assert json.loads((end / RECORD).read_text())["start"]["step"] == TINY["steps"]
    promote_snapshot(end, tmp_path / "asset", prompts=2)
    text = (tmp_path / "asset/README.md").read_text()
    assert "after 3 such steps of another run" in " ".join(text.split())
