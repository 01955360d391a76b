"""What takes minutes says how far it is: held-out images, and exports."""

import logging
import time

import pytest

from atelier.export import progress
from atelier.stages import heldout


def lines(monkeypatch, seconds_a_batch, batches=8, size=32):
    """What is said of batches that take so long each."""
    now = [0.0]
    monkeypatch.setattr(heldout.time, "monotonic", lambda: now[0])
    found = heldout.Progress(batches * size)
    said = []
    for batch in range(1, batches + 1):
        now[0] += seconds_a_batch
        said.append(found.line(batch * size))
    return [one for one in said if one is not None]


def test_images_are_counted_from_the_first_batch_to_the_last(monkeypatch):
    assert lines(monkeypatch, 8.0) == [
        "generated 32 of 256 held-out images; 56 s left",
        "generated 96 of 256 held-out images; 40 s left",
        "generated 160 of 256 held-out images; 24 s left",
        "generated 224 of 256 held-out images; 8 s left",
        "generated 256 of 256 held-out images in 64 s",
    ]


def test_what_takes_no_time_says_nothing(monkeypatch):
    assert lines(monkeypatch, 1.0) == []
    assert lines(monkeypatch, 100.0, batches=1) == []


def test_a_part_of_an_export_says_that_it_begins_goes_on_and_how_long_it_took(monkeypatch, caplog):
    monkeypatch.setattr(progress, "SAY_EVERY_SECONDS", 0.1)
    caplog.set_level(logging.INFO, "atelier.export.progress")
    with progress.saying("writing merged"):
        time.sleep(0.35)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "export: writing merged"
    assert said[1] == "export: still writing merged (0 s)"
    assert said[-1].startswith("export: writing merged took 0.")
    caplog.clear()
    with pytest.raises(ValueError, match="broken"), progress.saying("writing merged"):
        raise ValueError("broken")
    time.sleep(0.25)
    assert [record.getMessage() for record in caplog.records] == ["export: writing merged"]
