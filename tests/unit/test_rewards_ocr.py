"""The OCR reward with the real engine: detection, options, one failing image, threads."""

import threading

import pytest
from PIL import Image, ImageDraw, ImageFont

from atelier.config.sections.rewards import JpegConfig, OcrConfig
from atelier.errors import ConfigError
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.rewards.scorers import ocr_engine
from atelier.rewards.scorers.jpeg import JpegCompressibility, JpegIncompressibility
from atelier.rewards.scorers.ocr import OcrScorer


def picture(words, size=(256, 96)):
    """Words at (x, y) in black on white."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for (x, y), word in words.items():
        draw.text((x, y), word, fill="black", font=ImageFont.load_default(size=36))
    return image


def batch(images, targets):
    metadata = [{"target": target} for target in targets]
    return ScoreBatch(images, ["p"] * len(images), metadata, [0] * len(images))


def test_detection_reads_two_places_and_no_text():
    scorer = OcrScorer(OcrConfig(detect=True, box_order="reading"))
    two = picture({(10, 20): "SALE", (150, 20): "NOW"})
    scores = scorer.score(batch([two, Image.new("RGB", (64, 64), "white")], ["SALENOW", "SALE"]))
    assert list(scores.values) == [1.0, 0.0]
    seen = scores.details[0]
    assert seen["lines"] == ["SALE", "NOW"]
    assert seen["text"] == "SALENOW"
    assert seen["target"] == "SALENOW"
    assert 0.5 < seen["confidence"] <= 1
    assert scores.details[1]["confidence"] is None


def test_lines_below_the_confidence_threshold_are_ignored():
    image = picture({(10, 20): "SALE"}, (128, 64))
    loose = OcrScorer(OcrConfig(detect=False)).score(batch([image], ["SALE"]))
    strict = OcrScorer(OcrConfig(detect=False, min_confidence=1.0)).score(batch([image], ["SALE"]))
    assert (loose.values[0], strict.values[0]) == (1.0, 0.0)


def test_an_ocr_failure_is_missing_for_that_image_only(monkeypatch):
    """The engine cannot be made to fail from outside, so the failure is put in front of it."""
    real = ocr_engine.read_lines

    def fails_on_black(image, detect):
        if image.getextrema() == ((0, 0), (0, 0), (0, 0)):
            raise RuntimeError("bad tensor")
        return real(image, detect)

    monkeypatch.setattr(ocr_engine, "read_lines", fails_on_black)
    images = [Image.new("RGB", (64, 64)), picture({(10, 10): "CAT"}, (96, 64))]
    scores = OcrScorer(OcrConfig(detect=False)).score(batch(images, ["CAT", "CAT"]))
    assert isinstance(scores.values[0], Missing)
    assert "bad tensor" in scores.values[0].reason
    assert scores.values[1] == 1.0


def test_who_reads_has_an_engine_alone_and_leaves_it_to_the_next():
    plain, detecting = ocr_engine._borrowed_engine, ocr_engine._borrowed_engine(True)
    with plain(False) as first, plain(False) as second, detecting as third:
        assert len({id(one) for one in (first, second, third)}) == 3
    with ocr_engine._borrowed_engine(False) as again:
        assert again in (first, second)


def test_an_engine_that_failed_is_not_used_again():
    with pytest.raises(RuntimeError), ocr_engine._borrowed_engine(False) as broken:
        raise RuntimeError("bad tensor")
    with ocr_engine._borrowed_engine(False) as next_one:
        assert next_one is not broken


def test_images_of_a_batch_are_read_at_the_same_time(monkeypatch):
    """Four meet before any is read: one after another, they would wait for ever."""
    met, seen = threading.Barrier(4, timeout=60), set()

    def meets(image, detect):
        met.wait()
        seen.add(threading.current_thread().name)
        return [ocr_engine.Line("A" * image.width, 1.0)]

    monkeypatch.setattr(ocr_engine, "read_lines", meets)
    scorer = OcrScorer(OcrConfig(workers=4))
    images = [Image.new("RGB", (width, 8)) for width in range(1, 9)]
    scores = scorer.score(batch(images, ["A" * one.width for one in images]))
    assert [one["text"] for one in scores.details] == ["A" * one.width for one in images]
    assert list(scores.values) == [1.0] * 8
    assert seen == {"score-ocr"}


def test_images_that_hang_keep_no_other_batch_from_its_scores(monkeypatch):
    """As many as there are workers, in a batch that is given up at its deadline."""
    released = threading.Event()

    def hangs_on_wide(image, detect):
        if image.width > 8:
            released.wait(60)
        return [ocr_engine.Line("A", 1.0)]

    monkeypatch.setattr(ocr_engine, "read_lines", hangs_on_wide)
    wide, narrow = ([Image.new("RGB", (width, 8))] * 2 for width in (16, 8))
    with RewardSet([Reward(OcrScorer(OcrConfig(workers=2)))], 30) as rewards:
        late = rewards.collect([rewards.submit(batch(wide, ["A"] * 2))], 0.5)
        assert not late.valid.any()
        assert rewards.collect([rewards.submit(batch(narrow, ["A"] * 2))]).valid.all()
        released.set()


def test_what_can_never_be_read_is_said_by_whoever_asks(monkeypatch):
    def lacking(image, detect):
        raise ConfigError("no model")

    monkeypatch.setattr(ocr_engine, "read_lines", lacking)
    for workers in (1, 2):
        with pytest.raises(ConfigError, match="no model"):
            OcrScorer(OcrConfig(workers=workers)).score(batch([Image.new("RGB", (8, 8))], ["A"]))


def test_the_engine_is_silent(capfd):
    OcrScorer(OcrConfig(detect=True)).score(batch([Image.new("RGB", (32, 32))], ["A"]))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("quality", [1, 95])
def test_jpeg_golden_value_and_signs(quality):
    """Golden value 13: 689 bytes for flat grey; the tolerance covers other encoders."""
    grey = [Image.new("RGB", (64, 64), (128,) * 3)]
    more = JpegIncompressibility(JpegConfig(quality=quality)).score(batch(grey, [""]))
    less = JpegCompressibility(JpegConfig(quality=quality)).score(batch(grey, [""]))
    assert more.values[0] == pytest.approx(0.689, abs=0.1)
    assert less.values[0] == pytest.approx(-0.001378, abs=2e-4)
    assert less.values[0] == pytest.approx(-more.values[0] / 500)


def test_jpeg_quality_is_used():
    noisy = [Image.effect_noise((64, 64), 80).convert("RGB")]
    low, high = (
        JpegIncompressibility(JpegConfig(quality=q)).score(batch(noisy, [""])).values[0]
        for q in (20, 95)
    )
    assert low < high / 2
