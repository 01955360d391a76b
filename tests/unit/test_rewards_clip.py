"""CLIP rewards against a direct computation, on a checkpoint of random weights."""

import shutil

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, CLIPProcessor

from atelier.config.sections.rewards import ClipSimilarityConfig, PickScoreConfig
from atelier.errors import ConfigError
from atelier.rewards import ScoreBatch
from atelier.rewards.scorers.clip import ClipSimilarityScorer, PickScoreScorer
from tests.support.tiny_clip import LONGEST, save_tiny_clip

PROMPTS = ["a red circle", "blue", "so many words that no model of this size could read them all"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def batch():
    images = [Image.new("RGB", (40, 32), colour) for colour in ("red", "blue", "white")]
    return ScoreBatch(images, PROMPTS, [{}] * 3, [0, 1, 2])


@pytest.fixture(scope="module")
def direct(clip, batch):
    """Cosines and logits, by the model's own features, one image at a time."""
    model, processor = CLIPModel.from_pretrained(clip), CLIPProcessor.from_pretrained(clip)
    found = []
    for image, text in zip(batch.images, batch.prompts, strict=True):
        inputs = processor(
            images=image, text=text, truncation=True, max_length=LONGEST, return_tensors="pt"
        )
        with torch.no_grad():
            logit = model(**inputs).logits_per_image.item()
        found.append((logit / model.logit_scale.exp().item(), logit))
    return found


@pytest.mark.parametrize(
    ("normalization", "score"),
    [
        ("cosine", lambda cosine, logit: cosine),
        ("logit_30", lambda cosine, logit: logit / 30),
        ("logit_100", lambda cosine, logit: logit / 100),
    ],
)
def test_clip_similarity(clip, batch, direct, normalization, score):
    config = ClipSimilarityConfig(path=str(clip), normalization=normalization, device="cpu")
    values = ClipSimilarityScorer(config).score(batch).values
    assert values == pytest.approx([score(*one) for one in direct], abs=1e-5)
    assert len(set(values)) == 3


@pytest.mark.parametrize(
    ("normalization", "score"),
    [
        ("logit_26", lambda cosine, logit: logit / 26),
        ("cosine", lambda cosine, logit: cosine),
        ("mixgrpo", lambda cosine, logit: (logit - 18) / 8),
    ],
)
def test_pick_score(clip, batch, direct, normalization, score):
    config = PickScoreConfig(
        path=str(clip), processor=str(clip), normalization=normalization, device="cpu"
    )
    values = PickScoreScorer(config).score(batch).values
    assert values == pytest.approx([score(*one) for one in direct], abs=1e-5)


def test_a_long_prompt_is_cut(clip, batch):
    scorer = ClipSimilarityScorer(ClipSimilarityConfig(path=str(clip)))
    longer = ScoreBatch(batch.images, [*PROMPTS[:2], PROMPTS[2] + " and more"], [{}] * 3, [0, 1, 2])
    assert scorer.score(batch).values == scorer.score(longer).values


def test_its_weights_are_a_file_of_the_checkpoint(clip):
    (path,) = ClipSimilarityScorer(ClipSimilarityConfig(path=str(clip))).weights()
    assert path == clip / "model.safetensors"


def test_a_model_that_is_not_there_is_named(tmp_path):
    scorer = ClipSimilarityScorer(ClipSimilarityConfig(path=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"rewards\.clip_similarity\.path"):
        scorer.score(scorer.golden()[0])
    with pytest.raises(ConfigError, match=r"rewards\.clip_similarity\.path"):
        scorer.weights()


def test_a_model_whose_weights_are_no_numbers_is_named(clip, tmp_path):
    copy = shutil.copytree(clip, tmp_path / "clip")
    weights = load_file(copy / "model.safetensors")
    weights["logit_scale"].fill_(torch.nan)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    scorer = ClipSimilarityScorer(ClipSimilarityConfig(path=str(copy)))
    with pytest.raises(ConfigError, match=r"rewards\.clip_similarity\.path: .*logit_scale"):
        scorer.score(scorer.golden()[0])


def test_a_damaged_model_is_named(clip, tmp_path):
    copy = shutil.copytree(clip, tmp_path / "clip")
    (copy / "model.safetensors").write_bytes((clip / "model.safetensors").read_bytes()[:5000])
    scorer = ClipSimilarityScorer(ClipSimilarityConfig(path=str(copy)))
    with pytest.raises(ConfigError, match=r"clip_similarity\.path: .* cannot be loaded as a CLIP"):
        scorer.score(scorer.golden()[0])
