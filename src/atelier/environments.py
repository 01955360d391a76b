"""Environments of their own, for servers whose packages exclude the pipeline's (vLLM).

Each is declared below environments/ by requirement files that are installed in order, and lives
in .atelier/environments/. It is created on first use and made again when the files change.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atelier.errors import AtelierError, ConfigError

State = Literal["missing", "stale", "current"]


def declared(folder: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """The environments below a folder: name -> variant (gpu, cpu) -> files, as they are installed.

    requirements.txt is for GPUs, requirements-cpu*.txt in order for CPUs; without the latter the
    former is for both.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for own in sorted(folder.glob("*/requirements.txt")):
        cpu = sorted(own.parent.glob("requirements-cpu*.txt"), key=lambda file: file.stem)
        found[own.parent.name] = {
            "gpu": (own.name,),
            "cpu": tuple(file.name for file in cpu) or (own.name,),
        }
    return found


DECLARED = declared(Path(__file__).resolve().parents[2] / "environments")


@dataclass(frozen=True)
class Environment:
    """One environment of this checkout; looking at it touches nothing."""

    name: str
    repository: Path

    @property
    def folder(self) -> Path:
        return self.repository / ".atelier" / "environments" / self.name

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def variant(self) -> str | None:
        """Which variant is installed, or None."""
        stamp = self.folder / "installed"
        return stamp.read_text(encoding="utf-8").split()[0] if stamp.is_file() else None

    def state(self) -> State:
        """missing, stale (its declaration changed since) or current."""
        variant = self.variant
        if variant is None:
            return "missing"
        stamp = (self.folder / "installed").read_text(encoding="utf-8")
        return "current" if stamp == self._stamp(variant) else "stale"

    def files(self, variant: str) -> list[Path]:
        folder = self.repository / "environments" / self.name
        return [folder / file for file in DECLARED[self.name][variant]]

    def create(self, variant: str) -> Path:
        """Make the environment unless it is current; returns its interpreter.

        Raises AtelierError when pip fails. The stamp is written last, so that an interrupted
        creation is done again.
        """
        if self.state() == "current" and self.variant == variant:
            return self.python
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, with_pip=True)
        for file in self.files(variant):
            self._install(file)
        (self.folder / "installed").write_text(self._stamp(variant), encoding="utf-8")
        return self.python

    def _install(self, requirements: Path) -> None:
        command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        done = subprocess.run([*command, "-r", str(requirements)], stdout=sys.stderr, check=False)
        if done.returncode != 0:
            raise AtelierError(
                f"pip could not install environments/{self.name}/{requirements.name} "
                f"(exit code {done.returncode}); its output is above"
            )

    def _stamp(self, variant: str) -> str:
        content = b"\0".join(file.read_bytes() for file in self.files(variant))
        return f"{variant} {hashlib.sha256(content).hexdigest()}\n"


def environment(name: str, repository: Path) -> Environment:
    """The environment `name` of the checkout at `repository`.

    Raises ConfigError when none of that name is declared.
    """
    if name not in DECLARED:
        raise ConfigError(f"no environment {name!r} is declared; known: {', '.join(DECLARED)}")
    return Environment(name, repository)
