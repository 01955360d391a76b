"""A stage that is killed while its images are scored goes on without asking twice what a judge had
answered: a real process, and a real server that counts its questions."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from atelier.config.paths import repository_root
from atelier.data.prompts import Prompt, write_prompts
from atelier.tracking.run_directory import RunDirectory, read_json_object
from tests.support.judge_endpoint import Call, FakeJudge, judge_endpoint, said
from tests.support.runs import environment, make_run

pytestmark = pytest.mark.slow

ANSWERED, IMAGES = 9, 6 * 4
ENOUGH = 300.0  # seconds for a stage of so few images, on a machine that does other things too


def question(call: Call) -> str:
    """Equal for the same image with the same text."""
    content = call.body["messages"][0]["content"]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def prompts() -> list[Prompt]:
    points = {"testpoints": ["Style", "风格"], "descriptions": ["ink", "水墨画"]}
    return [
        Prompt(n, 0, f'the word "AB{letter}" in red', points) for n, letter in enumerate("CEFGHJ")
    ]


def start(run: RunDirectory) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "atelier", "stage", "baseline", "--run", str(run.root)]
    return subprocess.Popen(
        command, cwd=repository_root(), env=environment(), stdout=subprocess.DEVNULL
    )


def wait_for(condition, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + ENOUGH
    while not condition():
        assert process.poll() is None, "the stage ended"
        assert time.monotonic() < end
        time.sleep(0.02)


def kept(run: RunDirectory) -> int:
    return len(list((run.baseline / "answers").glob("??/*.json")))


def killed_while_scoring(run: RunDirectory, endpoint: FakeJudge) -> tuple[set[str], set[str]]:
    """The questions that were answered, and those that were not, when the stage was killed."""
    answered: set[str] = set()

    async def some(call: Call):
        if len(answered) == ANSWERED:
            await asyncio.sleep(ENOUGH)
        answered.add(question(call))
        return said("<score>[1, 0]</score>")

    endpoint.acts(some)
    process = start(run)
    try:
        wait_for(lambda: kept(run) == ANSWERED and len(endpoint.calls) > ANSWERED, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    asked = Counter(map(question, endpoint.calls))
    assert set(asked.values()) == {1}
    return answered, set(asked) - answered


def test_a_killed_evaluation_goes_on_without_asking_twice(tmp_path: Path) -> None:
    async def all_right(call: Call):
        return said("<score>[1, 0]</score>")

    with judge_endpoint() as endpoint:
        run = make_run(
            tmp_path,
            [
                *("evaluation.suite=unigenbench", "evaluation.unigenbench.judge=j"),
                *("evaluation.bootstrap_samples=100", "evaluation.num_inference_steps=2"),
                f"judges.j={{model: m, placement: remote, urls: [{endpoint.url}], concurrency: 3}}",
                *("data.source=unigenbench", "data.path=gone.csv"),
            ],
        )
        write_prompts(run.data / "heldout.parquet", prompts())
        answered, unanswered = killed_while_scoring(run, endpoint)
        assert len(answered) == ANSWERED
        images = {path.name: path.stat().st_mtime_ns for path in run.baseline.glob("images/*.png")}
        assert len(images) == IMAGES
        assert not (run.baseline / "summary.json").exists()

        endpoint.acts(all_right)
        process = start(run)
        assert process.wait(ENOUGH) == 0
        asked = Counter(map(question, endpoint.calls))
    assert set(asked.values()) == {1}
    assert answered.isdisjoint(asked)
    assert unanswered <= set(asked)
    assert len(answered) + len(asked) == IMAGES
    again = {path.name: path.stat().st_mtime_ns for path in run.baseline.glob("images/*.png")}
    assert set(again) == set(images)
    summary = read_json_object(run.baseline / "summary.json")
    assert summary["missing"] == 0
    assert summary["metrics"]["judge_unigenbench"]["mean"] == 0.5
    assert not (run.baseline / "answers").exists(), "nothing of it is left when all is scored"
