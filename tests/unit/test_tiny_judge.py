"""The embedded judge itself: small, right about held-out scenes, and what its card says."""

import json
import random
import re

import numpy as np
import pytest
from PIL import Image

from atelier.config.paths import repository_root
from atelier.data.questions import KINDS, caption_question
from atelier.judge_models.local import LocalJudge
from atelier.judge_models.tiny.measure import accuracy

FOLDER = repository_root() / "assets/tiny-judge"


@pytest.fixture(scope="module")
def judge() -> LocalJudge:
    return LocalJudge(FOLDER, "cpu")


def test_it_is_at_most_five_megabytes():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 5_000_000


def test_it_is_right_about_scenes_it_never_saw():
    found = accuracy(FOLDER, scenes=120, seed=77)
    assert found.keys() == set(KINDS)
    assert min(found.values()) >= 0.95, found


def test_its_card_says_what_was_measured():
    measured = json.loads((FOLDER / "training.json").read_text())["accuracy"]
    card = (FOLDER / "README.md").read_text()
    header, row = re.search(r"^(\| colour .*\|)\n\|[-|]+\n(\|.*\|)$", card, re.MULTILINE).groups()
    kinds, values = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in (header, row)
    )
    assert dict(zip(kinds, values, strict=True)) == {k: f"{v:.3f}" for k, v in measured.items()}


def test_what_is_no_picture_shows_nothing(judge: LocalJudge):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (3, 64, 64, 3), dtype=np.uint8)
    pictures = [*map(Image.fromarray, noise), Image.new("RGB", (64, 64), "grey")]
    found = judge.p_yes([[one] for one in pictures], [caption_question("a red circle")] * 4)
    assert max(found) < 0.01


def test_a_question_is_answered_alike_alone_and_among_others(judge: LocalJudge):
    shades = [random.Random(n).randrange(256) for n in range(5)]
    pictures = [[Image.new("RGB", (64, 64), (shade, 0, 0))] for shade in shades]
    questions = [caption_question(f"{n} red squares") for n in ("two", "three", "four", "two", "a")]
    together = judge.p_yes(pictures, questions)
    alone = [judge.p_yes([one], [text])[0] for one, text in zip(pictures, questions, strict=True)]
    assert together == pytest.approx(alone, abs=1e-5)
