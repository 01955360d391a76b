"""What takes minutes says how far it is: held-out images, and exports."""

import logging
import re
import threading
import time

import pytest

from atelier.export import progress
from atelier.stages import heldout
from tests.support.patience import PATIENCE


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
    end = time.monotonic() + PATIENCE
    with progress.saying("writing merged"):
        while len(caplog.records) < 3 and time.monotonic() < end:
            time.sleep(0.01)
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "export: writing merged"
    assert re.fullmatch(r"export: still writing merged \(\d+ s\)", said[1])
    assert re.fullmatch(r"export: writing merged took \d+\.\d s", said[-1])
    caplog.clear()
    with pytest.raises(ValueError, match="broken"), progress.saying("writing merged"):
        raise ValueError("broken")
    for thread in threading.enumerate():
        if thread.name == "export-progress":
            thread.join(PATIENCE)
    assert [record.getMessage() for record in caplog.records] == ["export: writing merged"]
