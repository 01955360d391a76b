"""Training whose completions a real vLLM draws: the train stage, its server, its ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atelier.processes.records import read_record
from atelier.tracking.run_directory import RunDirectory
from tests.flows.conftest import processes_of
from tests.support.random_qwen import WIDE, Kind
from tests.support.reward_services import wait_until
from tests.support.runs import environment, make_qwen_run, metrics, random_qwen_pipeline

ROUNDING = 1e-5
SECONDS = 300
SAMPLED = (
    "rollout.completion.backend=vllm",
    "rollout.old_log_prob=recompute",
    "rollout.sampler.tolerance=1e-3",
    "algorithm.mask_truncated=false",
)


def new_run(folder: Path, kind: Kind, *overrides: str) -> RunDirectory:
    own = (
        f"policy.path={random_qwen_pipeline(kind, WIDE)}",
        f"tracking.mlflow_uri=sqlite:///{folder}/mlflow.db",
    )
    return make_qwen_run(folder, kind, (*own, *SAMPLED, *overrides))


@contextmanager
def stage(run: RunDirectory, place: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier", "stage", "train", "--run", str(run.root)],
        env=environment(TEST_PLACE=str(place)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()


def server(run: RunDirectory) -> dict[str, Any]:
    (found,) = json.loads((run.train / "reward_services.json").read_text())["rollout.sampler"]
    return found


def steps_done(run: RunDirectory) -> int:
    return len(run.metrics.read_text().splitlines()) if run.metrics.exists() else 0


def require_alike(rows: Sequence[dict[str, Any]]) -> None:
    """Every step was drawn by the weights that the trainer had."""
    assert [row["step"] for row in rows] == [*range(1, len(rows) + 1)]
    for row in rows:
        assert row["sampler/probe_gap_max"] < ROUNDING
        assert row["ratio/rollout_gap_max"] < ROUNDING
    assert all(row["grad_norm"] > 0 for row in rows)


def test_server_and_trainer_are_killed_and_no_step_is_poisoned(tmp_path: Path) -> None:
    run = new_run(
        tmp_path,
        "text",
        "policy.trainable=lora",
        "policy.lora={rank: 4, alpha: 8}",
        "train.steps=5",
    )
    with stage(run, tmp_path) as process:
        wait_until(lambda: steps_done(run) == 1, SECONDS)
        os.kill(server(run)["pid"], signal.SIGKILL)
        wait_until(lambda: steps_done(run) == 3, SECONDS)
        trainer = read_record(run.processes / "trainer.json")
        os.kill(trainer["command"]["pid"], signal.SIGKILL)
        assert process.communicate(timeout=SECONDS)[1] is not None
        assert process.returncode == 0
    require_alike(metrics(run))
    assert server(run)["restarts"] == 1
    events = [json.loads(line)["event"] for line in run.events.read_text().splitlines()]
    assert events.count("resumed") == 1
    assert "rollout.sampler: " in (run.train / "trainer.log").read_text()
    assert not run.sampler.exists()
    assert not processes_of(tmp_path)


def test_sharded_weights_are_brought_whole(tmp_path: Path) -> None:
    """All of the language model is trained, in parts on two ranks, for edits."""
    sharded = ("launch.processes=2", "launch.engine=deepspeed", "launch.zero_stage=3")
    run = new_run(tmp_path, "edit", *sharded, "train.steps=2")
    with stage(run, tmp_path) as process:
        errors = process.communicate(timeout=SECONDS)[1]
        assert process.returncode == 0, errors[-3000:]
    require_alike(metrics(run))
