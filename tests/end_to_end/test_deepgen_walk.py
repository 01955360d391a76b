"""The steps of DeepGen-RL's guide on the embedded model, by the very lines of our page about it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atelier.config.paths import repository_root
from flows.local_platform.loopback import free_port
from tests.flows.conftest import Place
from tests.support.reward_services import wait_until

pytestmark = pytest.mark.slow

PAGE = repository_root() / "docs/coming-from-deepgen-rl.md"
FEW = (
    *("train.steps=3", "train.prompts_per_step=2", "train.evaluate_every=2", "launch.threads=1"),
    *("train.sft.pictures_per_update=2", "data.train_prompts=8", "data.heldout_prompts=4"),
    *("data.sft.scenes=4", "evaluation.prompts=4", "evaluation.periodic_prompts=2"),
    *("evaluation.num_inference_steps=2", "evaluation.images_per_prompt=1", "launch.processes=1"),
    "export.verify_prompts=1",
)


class Walk:
    """The lines of the page, run in a place of their own on another port."""

    def __init__(self, place: Place) -> None:
        self.place, self.port = place, free_port()
        self.variables = {"OMP_NUM_THREADS": "1"}
        (section,) = re.findall(
            r"^## The steps without a GPU\n(.*?)^## ", PAGE.read_text(), re.DOTALL | re.MULTILINE
        )
        (block,) = re.findall(r"^```\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        self.lines = [self._here(line) for line in block.replace("\\\n", " ").splitlines()]

    def _here(self, line: str) -> str:
        few = "".join(f" --set {one}" for one in (*FEW, self._store))
        line = re.sub(r"(--recipe \S+)", rf"\1{few}", line).replace("18082", str(self.port))
        line = line.replace("runs/<id>", f"{self.place.runs}/<id>")
        line = line.replace("sft.pth", str(self.place.root / "sft.pth"))
        line = line.replace(".venv/bin/python", sys.executable)
        return line.replace(".venv/bin/atelier", f"{sys.executable} -m atelier")

    @property
    def _store(self) -> str:
        return f"tracking.mlflow_uri={self.place.mlflow_uri}"

    def _start(self, line: str) -> subprocess.Popen[str]:
        found = [one.name for one in self.place.runs.glob("*")]
        return subprocess.Popen(
            ["bash", "-c", "exec " + line.replace("<id>", *found[:1] or ["?"])],
            env={**self.place.environment, **self.variables},
            cwd=repository_root(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, line: str) -> str:
        process = self._start(line)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, f"{line}\n{said[-4000:]}"
        return said

    @contextmanager
    def in_the_background(self, line: str) -> Iterator[None]:
        """Until it listens, and to its end."""
        process = self._start(line.removesuffix("&"))
        port = f":{self.port:04X} "
        listens = re.compile(rf"{port}\S+ 0A ")
        try:
            wait_until(lambda: listens.search(Path("/proc/net/tcp").read_text()) is not None, 120)
            yield
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_every_line_does_what_it_says(tmp_path: Path) -> None:
    walk = Walk(Place(tmp_path))
    serve, export, train, *after, end = walk.lines
    assert end == "kill %1"
    name, url = export.removeprefix("export ").split("=")
    walk.variables[name] = url
    with walk.in_the_background(serve):
        walk.run(train)
    run = walk.place.only_run()
    rows = [json.loads(line) for line in (run / "train/metrics.jsonl").read_text().splitlines()]
    for reward in ("ocr", "yes_no", "unified_reward_think"):
        assert any(f"reward/{reward}/mean" in row for row in rows), reward
    started = json.loads((run / "train/reward_services.json").read_text())
    assert started.keys() == {"yes_no", "unified_reward_think"}, "OCR was there already"
    evaluated = {one.name for one in (run / "train/evaluation").rglob("step-*")}
    assert {"step-000000", "step-000002"} <= evaluated
    table, convert, load, plan = (walk.run(line) for line in after)
    assert "Mean of primary dimensions" in table, table
    assert (tmp_path / "sft.pth").is_file(), convert
    assert re.search(r"^[1-9]\d+ weights$", load, re.MULTILINE), load
    assert "images rolled out" in plan, plan
