"""Living services that fail in every way: each batch ends right or missing, never wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.rewards import Missing
from tests.support import full_cache
from tests.support.fault_grid import BATCHES, GRID, RIGHT, Site, outcome, right_or_missing, site
from tests.support.full_cache import service_with_full_cache
from tests.support.reward_services import client


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("faults")) as found:
        yield found


@pytest.mark.parametrize("name", GRID)
def test_a_batch_ends_right_or_missing_and_one_that_waits_ends_right(place: Site, name: str):
    """Four batches at once that do not wait for the mending, and one that does."""
    found = outcome(place, GRID[name])
    for scores, right in zip(found.during, RIGHT, strict=True):
        assert right_or_missing(scores, right)
    assert found.after == RIGHT[0]
    assert found.recovery < 15
    missing = [one for scores in found.during for one in scores if isinstance(one, Missing)]
    assert missing, "the fault did nothing"


def test_a_full_disk_under_the_judges_cache_costs_no_score(tmp_path: Path):
    """What the cache cannot keep is asked again; it says so once."""
    with service_with_full_cache(tmp_path) as (scorer, log):
        for _ in range(2):
            assert list(scorer.score(full_cache.BATCH).values) == pytest.approx(full_cache.RIGHT)
        text = log.read_text()
    assert text.count("answers are not kept ([Errno 28] No space left on device") == 1


def test_a_service_whose_port_is_taken_ends_and_says_so(place: Site):
    """And harms nobody: the one that has the port answers as before."""
    config = place.folder / "rewards.yaml"
    command = [sys.executable, "-m", "atelier.rewards.service", "--config", str(config)]
    second = subprocess.run(
        [*command, "--port", str(place.port)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert second.returncode == 1
    assert f"127.0.0.1:{place.port}: [Errno 98] Address already in use" in second.stderr
    assert "Traceback" not in second.stderr
    with client(place.url) as scorer:
        assert list(scorer.score(BATCHES[0]).values) == RIGHT[0]
