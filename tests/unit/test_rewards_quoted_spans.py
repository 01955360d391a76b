"""DeepGen-RL's newer OCR rule: golden values, and what it does not decide."""

import pytest
from PIL import Image

from atelier.config.sections.rewards import OcrConfig, SpansConfig
from atelier.data.readers.ocr_text import targets_of
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.images import drawn_word
from atelier.rewards.scorers.ocr import OcrScorer
from atelier.rewards.scorers.quoted_spans import candidates, spans_similarity
from atelier.rewards.scorers.text import similarity

PUBLISHED = SpansConfig(kept_signs="ascii")


@pytest.mark.parametrize(
    ("prompt", "lines", "expected"),
    [
        ('say "Hello World" and "BYE"', ["Hello", "World", "bye"], 10 / 13),
        ('"SALE"', ["SALE50OFF"], 0.0),
        ('"VISTA"', ["WISTA"], 0.8),
        ('"vista"', ["wlsta"], 1.0),
        ('"10%"', ["lo"], 1.0),
        ('"Grand Opening Sale Today"', ["Grand", "Opening", "Sale", "Today"], 1.0),
        ('"SALE"', [], 0.0),
    ],
)
def test_the_golden_values(prompt, lines, expected):
    found = targets_of(prompt)
    targets = found.get("targets", [found["target"]])
    assert spans_similarity(targets, lines, PUBLISHED) == pytest.approx(expected, abs=1e-12)


def test_chinese_counts_unless_only_ascii_does():
    """The published default leaves nothing of it and says 0; here there is no score then."""
    assert spans_similarity(["中文"], ["中文"], PUBLISHED) is None
    assert spans_similarity(["中文"], ["中文"], SpansConfig(kept_signs="all")) == 1.0
    assert spans_similarity(["中文。"], ["中", "文"], SpansConfig()) == 1.0
    assert spans_similarity(["中文"], ["中国"], SpansConfig()) == 0.5
    # A text of which nothing is left weighs nothing beside others.
    assert spans_similarity(["中文", "BYE"], ["BYE"], PUBLISHED) == 1.0


@pytest.mark.parametrize(
    ("target", "lines", "score"),
    [
        (["Hello World"], ["Helo", "Wrld"], 0.8),
        (["SALE"], ["SALE50%OFF"], 1.0),
        (["Coffee"], ["Cofee", "shop"], 1 / 6),
        (["中文"], ["中文"], 1.0),
    ],
)
def test_the_older_rule_is_the_one_of_flow_grpo(target, lines, score):
    assert similarity(target[0], lines) == pytest.approx(score, abs=1e-12)


def test_settings_change_what_they_say():
    assert spans_similarity(["bye"], ["BYE"], SpansConfig(case_sensitive=False)) == 1.0
    assert spans_similarity(["vista"], ["wlsta"], SpansConfig(fold_confused=False)) == 0.6
    assert spans_similarity(["abc"], ["a", "b", "c", "d"], SpansConfig(most_joined=3)) == 1.0
    assert spans_similarity(["abc"], ["a", "b", "c", "d"], SpansConfig(most_joined=1)) < 1.0


def test_candidates_are_lines_neighbours_and_all():
    assert list(candidates(["a", "b", "c"], 2)) == ["a", "b", "c", "ab", "bc", "abc"]
    assert list(candidates(["a"], 3)) == ["a"]
    assert list(candidates([], 3)) == []


def batch(metadata):
    images = [drawn_word("HELLO")] * len(metadata)
    return ScoreBatch(images, ["p"] * len(metadata), metadata, [0] * len(metadata))


def test_the_reward_looks_for_every_quoted_text():
    scorer = OcrScorer(OcrConfig(detect=False, rule="spans"))
    metadata = [
        {"target": "HELLO"},
        {"target": "HELLO", "targets": ["HELLO", "WORLD"]},
        {"target": "hello"},
        {"target": "..."},
        {},
    ]
    scores = scorer.score(batch(metadata)).values
    assert scores[0] == 1.0
    assert scores[1] == pytest.approx(0.6)  # 5 of 10 letters, and the L of HELLO for that of WORLD
    assert scores[2] == 0.0
    assert isinstance(scores[3], Missing)
    assert "kept_signs" in scores[3].reason
    assert isinstance(scores[4], Missing)
    golden, expected, tolerance = scorer.golden()
    assert scorer.score(golden).values == pytest.approx(expected, abs=tolerance)


def test_an_image_without_text_scores_nothing():
    scorer = OcrScorer(OcrConfig(detect=False, rule="spans"))
    white = ScoreBatch([Image.new("RGB", (64, 64), "white")], ["p"], [{"target": "A"}], [0])
    assert scorer.score(white).values == [0.0]
