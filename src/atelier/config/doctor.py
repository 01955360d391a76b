"""What `atelier doctor` looks at: whether this machine can run what the repository describes.

Imports no torch: versions come from package metadata, GPUs from nvidia-smi.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from atelier import telemetry
from atelier.config.facts.read import known_facts, read_model_facts
from atelier.config.paths import repository_root, runs_root
from atelier.config.resolve import resolve
from atelier.config.space import run_bytes
from atelier.disk import amount, free_bytes
from atelier.environments import DECLARED, environment
from atelier.errors import ConfigError

PORTS = {4200: "Prefect server", 5000: "MLflow server"}
_LEAST_FREE_BYTES = 10 * 10**9


@dataclass(frozen=True)
class Check:
    """One thing looked at. `fail`: a run cannot work; `warn`: some runs cannot."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str


def checks() -> Iterator[Check]:
    """Every check, in the order they are shown."""
    root = repository_root()
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield _python(project)
    yield from _packages(project)
    yield _pins(root)
    yield _processors()
    yield _gpus()
    for port, owner in PORTS.items():
        yield _port(port, owner)
    for folder in (root, root / "runs", root / "outputs", root / ".atelier"):
        yield _writable(folder, root)
    yield _disk(root)
    for name in DECLARED:
        yield _environment(name, root)
    yield _telemetry()


def _python(project: dict[str, Any]) -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    fits = SpecifierSet(project["requires-python"]).contains(found)
    return Check("python", "ok" if fits else "fail", f"{found} ({project['requires-python']})")


def _packages(project: dict[str, Any]) -> Iterator[Check]:
    """One line when all is well, else one line a package that is not."""
    requirements = [Requirement(text) for text in project["dependencies"]]
    wrong = 0
    for requirement in requirements:
        found = _installed(requirement.name)
        if found is None or not requirement.specifier.contains(found, prereleases=True):
            wrong += 1
            yield Check(requirement.name, "fail", f"{found or 'missing'}, tested: {requirement}")
    if not wrong:
        yield Check("packages", "ok", f"all {len(requirements)} within the tested ranges")


def _pins(root: Path) -> Check:
    """How far the installed packages are from the reference environment."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    other = sorted(
        f"{canonicalize_name(name)} {found}"
        for name, pin in pins.items()
        if (found := _installed(name)) is not None and found.partition("+")[0] != pin
    )
    if not other:
        return Check("constraints", "ok", "installed packages are those of constraints.txt")
    shown = ", ".join(other[:5]) + (", ..." if len(other) > 5 else "")
    return Check("constraints", "warn", f"{len(other)} differ from constraints.txt: {shown}")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processors() -> Check:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Check("cpu", "ok", f"{os.cpu_count()} cores, {pages / 2**30:.0f} GiB of memory")


def _gpus() -> Check:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return Check("gpu", "ok", "none; launch.device auto computes on the CPU")
    except subprocess.TimeoutExpired:
        return Check("gpu", "warn", "nvidia-smi does not answer")
    if done.returncode != 0:
        return Check("gpu", "warn", f"nvidia-smi failed: {done.stdout.strip() or done.stderr}")
    return Check("gpu", "ok", "; ".join(done.stdout.strip().splitlines()))


def _port(port: int, owner: str) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Check(
                f"port {port}",
                "warn",
                f"in use ({error.strerror}): by this project's {owner} where the platform is up; "
                "else choose another (docs/platform.md)",
            )
    return Check(f"port {port}", "ok", f"free for the {owner}")


def _writable(folder: Path, root: Path) -> Check:
    name = "." if folder == root else f"{folder.relative_to(root)}/"
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Check(f"write {name}", "ok", "yes")
    return Check(f"write {name}", "fail", f"{existing} cannot be written")


def _disk(root: Path) -> Check:
    """Free space, against what a run of params.yaml would take."""
    free = free_bytes(runs_root())
    try:
        config = resolve()
        facts = read_model_facts(config) or known_facts(config)
    except ConfigError as error:
        return Check("disk", "warn", f"{amount(free)} free; params.yaml: {error}".splitlines()[0])
    if facts is None:
        return Check(
            "disk", "ok", f"{amount(free)} free; the model is not on this machine, nor known"
        )
    needed = run_bytes(config, facts)
    detail = f"{amount(free)} free where runs are kept, a run of params.yaml takes {amount(needed)}"
    return Check("disk", "ok" if free >= max(needed, _LEAST_FREE_BYTES) else "warn", detail)


def _environment(name: str, root: Path) -> Check:
    found = environment(name, root)
    detail = {
        "missing": f"declared, not created; `atelier environments create {name}` does",
        "stale": f"created from another declaration; `atelier environments create {name}` renews",
        "current": f"created ({found.variant})",
    }
    state = found.state()
    return Check(f"environment {name}", "warn" if state == "stale" else "ok", detail[state])


def _telemetry() -> Check:
    changed = [name for name, off in telemetry.SWITCHES.items() if os.environ.get(name) != off]
    if changed:
        return Check("telemetry", "warn", f"set by you: {', '.join(changed)}")
    return Check("telemetry", "ok", "off in every dependency")
