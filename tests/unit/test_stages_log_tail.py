import logging
from collections.abc import Iterator

import pytest

from atelier.stages.log_tail import LogTail, last_error

TRACEBACK = """\
Traceback (most recent call last):
  File "x.py", line 1, in <module>
    raise Stopped("no")
atelier.errors.Stopped: step 3: only 10% of the images have a score
  Mend the reward
E1127 23:53:28.303000 7625 torch/distributed/elastic/multiprocessing/api.py:1028] failed
============================================================
"""


@pytest.mark.parametrize(
    ("log", "kind", "text"),
    [
        ("step 1\nPlanError: this plan cannot work:\n  train.steps: no\n", "PlanError", None),
        (TRACEBACK, "Stopped", "step 3: only 10% of the images have a score\n  Mend the reward"),
        ("[rank1]: RuntimeError: boom\n", "RuntimeError", "boom"),
        ("Killed\n", None, "Killed"),
        ("", None, "it wrote nothing"),
    ],
)
def test_the_last_error_is_what_a_person_needs(tmp_path, log, kind, text):
    path = tmp_path / "trainer.log"
    path.write_text(log)
    found = last_error(path)
    assert found.kind == kind
    if text is not None:
        assert found.text == text


class Kept(logging.Handler):
    """What the trainer's logger itself was told: what is above it, Prefect may have set up."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[Kept]:
    logger, own = logging.getLogger("atelier.trainer"), Kept()
    level = logger.level
    logger.addHandler(own)
    logger.setLevel(logging.INFO)
    yield own
    logger.removeHandler(own)
    logger.setLevel(level)


def test_only_new_whole_lines_are_shown_and_no_noise(tmp_path, kept):
    path = tmp_path / "trainer.log"
    path.write_text("of an earlier life\n")
    tail = LogTail(path)
    with path.open("a") as file:
        file.write("step 1\nW1127 23:53:28.303000 1 torch/x.py:1] noise\nstep")
        file.flush()
        tail.show()
        file.write(" 2\nLoading: 0%|   | 0/9\rLoading: 100%|###| 9/9\n")
        file.flush()
        tail.show()
    assert kept.messages == ["step 1", "step 2"]


def test_the_error_of_an_earlier_life_is_not_that_of_this_one(tmp_path):
    path = tmp_path / "trainer.log"
    path.write_text("Stopped: step 3: only 0% of the images have a score\n")
    tail = LogTail(path)
    assert tail.last_error() == (None, "it wrote nothing")
    with path.open("a") as file:
        file.write("step 4\n")
    assert tail.last_error() == (None, "step 4")
    assert last_error(path).kind == "Stopped"
