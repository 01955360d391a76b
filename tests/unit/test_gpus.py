import os

import pytest

from atelier.errors import PlanError
from atelier.processes import gpus


@pytest.fixture
def four(monkeypatch):
    """A machine with four GPUs, on which this process has claimed none yet."""
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ["0", "1", "2", "3"])
    monkeypatch.setattr(gpus, "_claimed", [])
    monkeypatch.setenv(gpus.VISIBLE, "")


def test_what_another_process_holds_is_left_alone(four, tmp_path):
    others = gpus._take(["0", "2"], 2, tmp_path)
    assert others is not None
    assert gpus.claim_gpus(2, tmp_path) == ["1", "3"]
    assert os.environ[gpus.VISIBLE] == "1,3"


def test_a_claim_is_kept_and_not_made_twice(four, tmp_path):
    gpus.claim_gpus(2, tmp_path)
    gpus.claim_gpus(2, tmp_path)
    assert gpus._take(["2", "3"], 2, tmp_path) is not None


def test_all_or_none_are_taken(tmp_path):
    assert gpus._take(["0", "1"], 2, tmp_path) is not None
    assert gpus._take(["0", "1", "2"], 2, tmp_path) is None
    assert gpus._take(["2"], 1, tmp_path) is not None, "a vain attempt holds nothing"


def test_a_claim_waits_until_there_are_enough(four, tmp_path, monkeypatch):
    others = gpus._take(["0", "1", "2"], 3, tmp_path)
    waited = []

    def others_end(seconds):
        waited.append(seconds)
        for lock in others.values():
            os.close(lock)

    monkeypatch.setattr(gpus.time, "sleep", others_end)
    assert gpus.claim_gpus(2, tmp_path) == ["0", "1"]
    assert len(waited) == 1


def test_more_than_there_are_is_refused(four, tmp_path):
    with pytest.raises(PlanError, match=r"launch\.processes: 5 GPUs .* 4 are visible"):
        gpus.claim_gpus(5, tmp_path)


def test_a_machine_without_gpus_has_nothing_to_claim(monkeypatch, tmp_path):
    monkeypatch.setattr(gpus, "visible_gpus", list)
    assert gpus.claim_gpus(8, tmp_path) == []
