"""A project of one's own: the working tree as a fresh Git and DVC repository, run with our Python.

For what writes into the project itself: `dvc repro`, `dvc add`, prepared data.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from atelier.config.yaml_files import dump_yaml, read_override
from atelier.tracking.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
LEFT_OUT = ("data/prepared/", "tests/", "benchmarks/", "docs/images/")


@dataclass(frozen=True)
class Project:
    """A clone whose code, recipes and data are its own."""

    root: Path

    @property
    def outputs(self) -> RunDirectory:
        return RunDirectory(self.root / "outputs")

    @property
    def environment(self) -> dict[str, str]:
        """As a shell with the environment activated has it; all state stays in the project."""
        beside = self.root.parent
        own = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(self.root / "src"), str(self.root)]),
            "DVC_SITE_CACHE_DIR": str(beside / "dvc-site"),
            "PREFECT_HOME": str(beside / "prefect"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        left_out = ("PREFECT_API_URL", "ATELIER_DATA", "ATELIER_RUNS")
        return {**{k: v for k, v in os.environ.items() if k not in left_out}, **own}

    def run(self, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.root,
            env={**self.environment, **extra},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )

    def output(self, *command: str, **extra: str) -> str:
        """What a command that must succeed prints."""
        done = self.run(*command, **extra)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def dvc(self, *arguments: str, **extra: str) -> str:
        return self.output("dvc", *arguments, **extra)

    def python(self, code: str, **extra: str) -> str:
        """Run a script of some lines on the project's own library."""
        return self.output(sys.executable, "-c", code, **extra)

    def commit(self, message: str) -> None:
        self.output("git", "add", "--all")
        self.output("git", "commit", "--quiet", "--message", message)

    def set(self, *overrides: str) -> None:
        """Change params.yaml, which is written anew."""
        path = self.root / "params.yaml"
        params: dict[str, Any] = yaml.safe_load(path.read_text())
        for one in overrides:
            _lay_over(params, read_override(one).values)
        path.write_text(dump_yaml(params))


def make_project(folder: Path, recipe: str, overrides: tuple[str, ...]) -> Project:
    """The working tree, committed or not, with a params.yaml of one's own."""
    project = Project(folder)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and (
            not name.startswith(LEFT_OUT) or name.endswith(".gitignore")
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    project.output("git", "init", "--quiet", "--initial-branch", "main")
    for key, value in (("user.name", "Test"), ("user.email", "test@localhost")):
        project.output("git", "config", key, value)
    sections: dict[str, Any] = {name: {} for name in _sections()}
    (folder / "params.yaml").write_text(dump_yaml({"recipe": recipe, **sections}))
    project.set(*overrides)
    project.commit("The project")
    return project


def _sections() -> list[str]:
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    return [name for name in yaml.safe_load(text) if name != "recipe"]


def _lay_over(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay_over(below[key], value)
        else:
            below[key] = value
