"""The pipeline with three rewards on three managed services, one of which is killed.

Its curves are those of a trainer that scores by itself.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from atelier.judge.usage import NAME, read_usage
from atelier.tracking.run_directory import RunDirectory
from tests.flows.conftest import Place, processes_of
from tests.support.metric_rows import results
from tests.support.reward_services import wait_until
from tests.support.runs import make_recipe_run, train

REWARDS = ("ocr", "jpeg_compressibility", "yes_no")
THREE = (
    "rewards.ocr={weight: 0.5, detect: false}",
    "rewards.yes_no={weight: 0.3, judge: scene}",
    "judges.scene={model: assets/tiny-judge, placement: in_process}",
    "train.steps=4",
    "launch.threads=1",
)
MANAGED = tuple(f"rewards.{name}.placement=managed" for name in REWARDS)
VICTIM = "yes_no"


def services(run: Path) -> dict[str, Any]:
    return json.loads((run / "train/reward_services.json").read_text())


def kill_in_the_middle_of_a_step(place: Place) -> None:
    """Stopped first, so that requests of a step wait in it when it is killed."""
    wait_until(lambda: any(place.runs.glob("*/train/metrics.jsonl")), 300)
    run = place.only_run()
    (victim,) = services(run)[VICTIM]
    os.kill(victim["pid"], signal.SIGSTOP)
    wait_until(lambda: waits_for(victim["url"]), 60)
    os.kill(victim["pid"], signal.SIGKILL)


def waits_for(url: str) -> bool:
    """Whether bytes wait in a service that reads nothing."""
    port = int(url.rpartition(":")[2])
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return any(row[1].endswith(f":{port:04X}") and int(row[4].split(":")[1], 16) for row in rows)


@pytest.mark.slow
def test_a_service_killed_while_it_trains_changes_no_curve(tmp_path: Path):
    place = Place(tmp_path / "storm")
    place.root.mkdir()
    killer = threading.Thread(target=kill_in_the_middle_of_a_step, args=(place,), daemon=True)
    killer.start()
    process = place.run(place.command(overrides=(*THREE, *MANAGED)))
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    storm = place.only_run()
    calm = make_recipe_run(tmp_path / "calm", "tiny/base", place.settings(*THREE))
    train(calm)
    assert curves(storm) == curves(calm.root)
    # Also what the killed service was asked after its restart.
    assert read_usage([storm / "train/services" / NAME])["judges.scene"].questions > 0
    restarts = {name: one["restarts"] for name, (one,) in services(storm).items()}
    assert restarts == {name: int(name == VICTIM) for name in REWARDS}
    assert "restarted in" in process.stdout
    require_table(place)
    assert not processes_of(tmp_path)


def curves(run: Path) -> list[dict[str, Any]]:
    return results(RunDirectory(run).metrics.read_text().splitlines())


def require_table(place: Place) -> None:
    """The servers on the run's page in Prefect, with what they were in the end."""
    with sqlite3.connect(place.root / "prefect/prefect.db") as database:
        artifacts = dict(database.execute("select key, data from artifact where key is not null"))
    rows = json.loads(json.loads(artifacts["servers"]))
    assert [row["server"] for row in rows] == [f"rewards.{name}-0" for name in REWARDS]
    for row in rows:
        assert row["url"].startswith("http://127.0.0.1:")
        assert row["pid"]
        assert row["version"]
        assert row["GPU"] == "CPU"
        assert row["restarts"] == int(row["server"] == f"rewards.{VICTIM}-0")
